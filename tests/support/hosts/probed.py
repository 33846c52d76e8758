"""Hosts that have been asked, without any host: what they say, and a job that asks them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.runtime.hosts.checked_hosts import Asked
from holdfast.runtime.hosts.wire import HostFacts, Question
from holdfast.runtime.system.devices import Devices
from holdfast.runtime.system.network import Interface, Reached

QUESTION = Question(
    Path("/work"), Path("/work/train.py"), Path("/work/run/lease"), "t", Path("mpiexec")
)
LIKE = HostFacts(
    identity="",
    cores=8,
    memory=1 << 36,
    shm_free=1 << 35,
    devices=Devices(),
    processor="Xeon",
    flags=frozenset({"avx", "avx2"}),
    versions={"Python": "3.11.2", "numpy": "2.2.0", "tensorflow": "", "MPI": "Open MPI 5.0.9"},
    program={"/work/train.py": "1234567890", "helper.py": "aabbccddee"},
    has_cwd=True,
    has_token=True,
    clock=100.0,
    interfaces=(),
    distributions={"pandas": "2.2", "scipy": "1.0"},
)
LAN, DOCKER = "10.1.0.0/16", "172.17.0.0/16"


def facts(name: str, **changes: Any) -> HostFacts:
    """Return what a host says that is like the others but for ``changes``."""
    return replace(LIKE, **({"identity": name} | changes))


def asked(name: str, **changes: Any) -> Asked:
    return Asked(name, facts(name, **changes), asked_at=99.0, answered_at=101.0)


def on_lan(number: int, *more: Interface, speed: int = 0) -> dict[str, Any]:
    """Return the interfaces of a host in a network of all hosts, and that it has come there."""
    address = f"10.1.0.{number}"
    return {
        "interfaces": (Interface("eth0", address, 16, speed=speed), *more),
        "reached": (Reached(LAN, address),),
    }
