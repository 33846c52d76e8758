"""What `holdfast doctor --hosts` finds: every host, every difference, and the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from probed import asked, on_lan

from holdfast.runtime.commands import doctor
from holdfast.runtime.commands.doctor import examine_hosts
from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import MpiLibrary
from holdfast.runtime.hosts.checked_hosts import Asked
from holdfast.runtime.hosts.network import places
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import read_hosts
from holdfast.runtime.system.devices import Devices
from holdfast.runtime.system.own_process import logical_directory

LIBRARY = MpiLibrary(Path("/opt/mpiexec"), "5.0.9")


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def found(*others: Asked, slots: str = "localhost:1,b:2") -> list[str]:
        options = JobOptions(Path("x"), tmp_path, hosts=read_hosts(slots))
        own = asked("a", **on_lan(1))
        tried = places(None, own.facts.interfaces if own.facts else (), "a")

        def ask(_options: object, _names: list[str], question: Any, _tell: object) -> Any:
            assert question.proof.read_text() == question.token
            return [own, *others], tried

        monkeypatch.setattr(doctor, "ask_hosts", ask)
        told = examine_hosts(options, LIBRARY)
        return [f"{'ok' if one.is_good else 'FAIL'} {one.subject}: {one.sentence}" for one in told]

    yield found
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_suit_each_other_are_shown_with_their_network(findings: Any) -> None:
    own, other, network = findings(
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


def test_all_differences_are_told_and_the_rest_is_still_examined(findings: Any) -> None:
    other = asked(
        "b", **on_lan(2), has_cwd=False, clock=161.0, processor="Zen", flags=frozenset({"avx"})
    )

    lines = findings(other)

    assert any("its clock is 60 s ahead: set both by NTP" in line for line in lines)
    assert f"FAIL hosts: the working directory {logical_directory()} is not on b: share it" in lines
    assert any(
        "they differ: all workers would have ONEDNN_MAX_CPU_ISA=AVX" in line for line in lines
    )
    assert lines[-1].startswith("ok ")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Asked("b", fault="b is away"), r"FAIL host b: b is away"),
        (asked("b", **(on_lan(2) | {"reached": ()})), r"ok host b: .*FAIL network: b came to .*"),
    ],
)
def test_network_that_not_all_reach_is_told_and_none_is_blamed_for_a_host_that_is_away(
    findings: Any, other: Asked, told: str
) -> None:
    assert re.fullmatch(told, " ".join(findings(other)[1:]))


def test_network_that_is_none_of_this_host_is_told(
    findings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(*_: object) -> None:
        raise UsageError("--network eth9: a has no such interface")

    monkeypatch.setattr(doctor, "ask_hosts", ask)
    options = JobOptions(Path("x"), tmp_path, hosts=read_hosts("localhost:1,b:2"))

    (told,) = examine_hosts(options, LIBRARY)

    assert (told.is_good, told.sentence) == (False, "--network eth9: a has no such interface")
