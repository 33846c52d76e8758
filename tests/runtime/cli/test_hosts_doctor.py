"""What `holdfast doctor --hosts` finds: every host, every difference, and the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed import QUESTION, asked, on_lan

from holdfast.runtime.cli import doctor
from holdfast.runtime.cli.doctor import examine_hosts, pairs_of
from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.checked_hosts import Asked, Asking
from holdfast.runtime.hosts.link_trial import LinkSpeed
from holdfast.runtime.hosts.network import places
from holdfast.runtime.mpi.mpi_library import MpiLibrary
from holdfast.runtime.options.host_list import read_hosts
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.system.devices import Devices

LIBRARY = MpiLibrary(Path("/opt/mpiexec"), "5.0.9")


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def found(*others: Asked, slots: str = "localhost:1,b:2") -> list[str]:
        options = JobOptions(Path("x"), tmp_path, hosts=read_hosts(slots))
        own = asked("a", **on_lan(1))
        tried = places(None, own.facts.interfaces if own.facts else (), "a")

        def ask(_options: object, _names: list[str], question: Any, _tell: object) -> Asking:
            assert question.proof.read_text() == question.token
            return Asking(QUESTION, tried, (own, *others))

        monkeypatch.setattr(doctor, "ask_hosts", ask)
        monkeypatch.setattr(
            doctor,
            "measure_pairs",
            lambda pairs, *_: [(*pair, LinkSpeed(0.0001, 1e9)) for pair in pairs],
        )
        told = examine_hosts(options, LIBRARY)
        return [f"{'ok' if one.is_good else 'FAIL'} {one.subject}: {one.sentence}" for one in told]

    yield found
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_suit_each_other_are_shown_with_network_and_links(findings: Any) -> None:
    own, other, network, link = findings(
        asked("b", **on_lan(2), devices=Devices("CUDA_VISIBLE_DEVICES", ("0",), ("H100",))),
        slots="localhost:0,b:2",
    )

    assert own.endswith(
        ": takes 0 workers, 8 cores (Xeon, AVX2), 64.0 GiB of memory, 32.0 GiB free in /dev/shm"
    )
    assert other == (
        "ok host b: takes 2 workers, 8 cores (Xeon, AVX2), 64.0 GiB of memory, "
        "32.0 GiB free in /dev/shm, "
        "1 device (H100, CUDA_VISIBLE_DEVICES=0)"
    )
    assert network.startswith("ok network: 10.1.0.0/16: ")
    assert network.endswith(" 10.1.0.1, b 10.1.0.2")
    assert link.endswith(" - b: 0.10 ms there and back, 1000 MB/s")


def test_all_differences_are_told_and_the_rest_is_still_examined(findings: Any) -> None:
    other = asked(
        "b", **on_lan(2), has_cwd=False, clock=161.0, processor="Zen", flags=frozenset({"avx"})
    )

    lines = findings(other)

    assert any("its clock is 60 s ahead: set both by NTP" in line for line in lines)
    assert "FAIL hosts: the working directory /work is not on b: share it" in lines
    assert any(
        "they differ: all workers would have ONEDNN_MAX_CPU_ISA=AVX" in line for line in lines
    )
    assert lines[-1].startswith("ok ")


def test_host_that_does_not_answer_is_told_and_no_network_is_blamed(findings: Any) -> None:
    lines = findings(Asked("b", fault="b cannot be reached by ssh: no"))

    assert lines[1:] == ["FAIL host b: b cannot be reached by ssh: no"]


def test_network_that_not_all_reach_is_told(findings: Any) -> None:
    lines = findings(asked("b", **(on_lan(2) | {"reached": ()})))

    assert lines[-1].startswith("FAIL network: b came to ")


def test_network_that_is_none_of_this_host_is_told(
    findings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(*_: object) -> Asking:
        raise UsageError("--network eth9: a has no such interface")

    monkeypatch.setattr(doctor, "ask_hosts", ask)
    options = JobOptions(Path("x"), tmp_path, hosts=read_hosts("localhost:1,b:2"))

    (told,) = examine_hosts(options, LIBRARY)

    assert (told.is_good, told.sentence) == (False, "--network eth9: a has no such interface")


@pytest.mark.parametrize(
    ("hosts", "count"), [(2, 1), (3, 3), (6, 15), (7, 11), (100, 197)], ids=str
)
def test_a_few_hosts_are_measured_in_all_pairs_and_many_in_a_chain(hosts: int, count: int) -> None:
    pairs = pairs_of(hosts)

    assert len(pairs) == len(set(pairs)) == count
    assert {number for pair in pairs for number in pair} == set(range(hosts))
    assert all(first < second for first, second in pairs)
