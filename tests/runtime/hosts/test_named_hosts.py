"""The hosts of a job: which one is this host, and that the head's comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.hosts.checked_hosts import own_host, settle_hosts
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import read_hosts
from holdfast.runtime.system.network import own_name

ELSEWHERE = "198.51.100.1"
"""An address for documentation (RFC 5737): no host has it."""


def settled(text: str) -> str:
    options = JobOptions(Path("train.py"), Path("/run"), hosts=read_hosts(text))
    return ",".join(map(str, settle_hosts(options)))


@pytest.mark.parametrize(
    ("named", "hosts"),
    [
        (f"{ELSEWHERE}:4,localhost:2", f"{own_name()}:2,{ELSEWHERE}:4"),
        (f"{ELSEWHERE}:4,{own_name()}:2", f"{own_name()}:2,{ELSEWHERE}:4"),
        (f"{ELSEWHERE}:4,127.0.0.1:2", f"127.0.0.1:2,{ELSEWHERE}:4"),
        (f"{ELSEWHERE}:4,me@localhost:2", f"{own_name()}:2,{ELSEWHERE}:4"),
        (f"{ELSEWHERE}:4", f"{own_name()}:0,{ELSEWHERE}:4"),
        ("localhost:4", ""),
    ],
    ids=["localhost", "name", "address", "user", "not named", "alone"],
)
def test_host_of_the_head_comes_first(named: str, hosts: str) -> None:
    assert settled(named) == hosts


def test_node_of_slurm_is_known_by_the_name_that_slurm_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node1")

    assert settled(f"{ELSEWHERE}:4,node1:2") == f"node1:2,{ELSEWHERE}:4"


def test_job_without_hosts_has_no_other_one() -> None:
    assert settle_hosts(JobOptions(Path("train.py"), Path("/run"))) == ()


@pytest.mark.parametrize(
    ("own", "asked"), [("n1", []), ("n1.example", ["slow.example", "n1"])], ids=["name", "alias"]
)
def test_resolver_is_asked_only_if_no_name_is_known(own: str, asked: list[str]) -> None:
    hosts, found = [HostSlots("slow.example", 1), HostSlots("n1", 1)], list[str]()

    def ask(name: str) -> bool:
        found.append(name)
        return name == "n1"

    assert own_host(hosts, own_names=lambda: frozenset({own}), is_own=ask) == hosts[1]
    assert found == asked
