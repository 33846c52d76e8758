"""The victim of a strike is the process that the plan means, under every launcher."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from holdfast.runtime.host import guard
from holdfast.runtime.host.launchers import INTEL_MPI, MPICH, OPEN_MPI, Launcher, LaunchLine
from holdfast.runtime.tools import striker
from holdfast.runtime.tools.strike import Target
from holdfast.runtime.tools.striker import choose_victim, find_victims

GUARD = (sys.executable, "-I", "-S", guard.__file__)
LINE = LaunchLine(Path("/opt/mpi/bin/mpiexec"), 2, Path("/tmp/launch-1"), GUARD)
NAMES = {
    40: "holdfast-agent",
    47: "holdfast-w12",
    43: "holdfast-w3",
    44: "holdfast-pool",
    49: "holdfast-writer",
    45: "holdfast-writer",
    50: "holdfast-w3b",
    51: "python3",
}


class Proc:
    """Command lines and environments, as the kernel would show them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[int, str] = {}
        self.variables: dict[int, list[bytes]] = {}
        monkeypatch.setattr(striker, "command_line", lambda pid: self.lines.get(pid, ""))
        monkeypatch.setattr(striker, "variables_of", lambda pid: self.variables.get(pid, []))

    def add(self, pid: int, command: tuple[str, ...], *variables: bytes) -> None:
        self.lines[pid] = "".join(f"{word}\0" for word in command)
        self.variables[pid] = [b"HOME=/root", *variables]

    def find(self, target: Target) -> dict[int, int]:
        return find_victims(target, dict.fromkeys(self.lines, "python3"), None)


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Proc:
    return Proc(monkeypatch)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (Target.WORKER, {3: 43, 12: 47}),
        (Target.AGENT, {0: 40}),
        (Target.POOL, {0: 44}),
        (Target.WRITER, {0: 45, 1: 49}),
        (Target.SUPERVISOR, {0: 51}),
    ],
    ids=lambda value: value.value if isinstance(value, Target) else "",
)
def test_process_is_known_by_its_name(target: Target, found: dict[int, int]) -> None:
    assert find_victims(target, NAMES, 51) == found


@pytest.mark.parametrize(
    "target", [Target.WORKER, Target.GUARD, Target.MPIEXEC, *striker._NAMES], ids=lambda t: t.value
)
def test_job_that_has_yet_to_start_has_no_victim_but_its_supervisor(
    proc: Proc, target: Target
) -> None:
    proc.add(51, ("python3", "-c", "main"))

    assert find_victims(target, {51: "python3"}, 51) == {}
    assert choose_victim(target, 3, {51: "python3"}, 51) is None


def test_supervisor_that_has_ended_is_no_victim() -> None:
    assert find_victims(Target.SUPERVISOR, NAMES, None) == {}
    assert choose_victim(Target.SUPERVISOR, 0, NAMES, None) is None


@pytest.mark.parametrize(("index", "chosen"), [(0, 43), (1, 47), (2, 43), (35, 47)])
def test_index_counts_the_living_in_the_order_of_their_ids(index: int, chosen: int) -> None:
    assert choose_victim(Target.WORKER, index, NAMES, 51) == chosen


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (LINE, "OMPI_COMM_WORLD_RANK"),
        (dataclasses.replace(LINE, ulfm=False), "OMPI_COMM_WORLD_RANK"),
        (dataclasses.replace(LINE, ulfm=False, launcher=MPICH), "PMI_RANK"),
        (dataclasses.replace(LINE, ulfm=False, launcher=INTEL_MPI), "PMI_RANK"),
    ],
    ids=["Open MPI", "Open MPI without shrinking", "MPICH", "Intel MPI"],
)
def test_mpiexec_and_its_guards_are_told_apart(proc: Proc, line: LaunchLine, rank: str) -> None:
    proc.add(30, ("python3", "-c", "import sys; agent"))
    proc.add(31, line.command())
    proc.add(33, GUARD, f"{rank}=0".encode())
    proc.add(32, GUARD, f"{rank}=1".encode())

    assert proc.find(Target.MPIEXEC) == {0: 31}
    assert proc.find(Target.GUARD) == {0: 33, 1: 32}


@pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH], ids=lambda launcher: launcher.library)
def test_worker_is_no_guard_although_it_has_the_environment_of_one(
    proc: Proc, launcher: Launcher
) -> None:
    rank = b"OMPI_COMM_WORLD_RANK=1" if launcher is OPEN_MPI else b"PMI_RANK=1"
    proc.add(34, ("python3", "-c", "worker"), rank)
    proc.add(35, (*GUARD, "more"), rank)

    assert proc.find(Target.GUARD) == {}
    assert proc.find(Target.MPIEXEC) == {}
