"""Strikes reach processes and places of one job only, wait for their victims, and are undone."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.runtime.host import guard
from holdfast.runtime.host.launchers import INTEL_MPI, MPICH, OPEN_MPI, Launcher, LaunchLine
from holdfast.runtime.run.progress import WorkerReport
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.owned_directory import make_owned_directory
from holdfast.runtime.tools import striker
from holdfast.runtime.tools.other_hosts import FoundVictim, choose_on_hosts
from holdfast.runtime.tools.strike import Strike, Target, parse_plan, parse_strike
from holdfast.runtime.tools.striker import (
    WAITS_FOR_VICTIM_S,
    JobTraces,
    Striker,
    choose_victim,
    find_victims,
)


class FakeTraces(JobTraces):
    """Processes that only exist here, and the signals that they got."""

    def __init__(self, alive: Mapping[int, str]) -> None:
        self.alive = dict(alive)
        self.sent: list[tuple[int, signal.Signals]] = []

    def processes(self) -> dict[int, str]:
        return self.alive

    def signal(self, pid: int, *numbers: signal.Signals) -> bool:
        if pid in self.alive:
            self.sent += [(pid, number) for number in numbers]
        return pid in self.alive


class FakePlace:
    def __init__(self) -> None:
        self.is_full = False

    def fill(self) -> None:
        self.is_full = True

    def release(self) -> None:
        self.is_full = False


@pytest.fixture
def fakes() -> FakeTraces:
    # Numbers that no process has: the kernel's largest is 2**22.
    return FakeTraces({2**22 + 1: "holdfast-w3", 2**22 + 2: "holdfast-w7"})


def ordered(fakes: FakeTraces, *lines: str, stderr: FakePlace | None = None) -> Striker:
    """Return a striker with orders of the moment 1.0."""
    striker = Striker(fakes)
    if stderr is not None:
        striker.use(Target.STDERR, stderr)
    for line in lines:
        striker.order(parse_strike(line), 1.0)
    return striker


def test_index_chooses_among_the_living(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "kill worker #5 at 1s")

    (struck,) = striker.poll(1.0, 9, None)

    assert fakes.sent == [(2**22 + 2, signal.SIGKILL)]  # 5 modulo 2: the second
    assert (struck.victim, struck.step) == (f"{2**22 + 2} holdfast-w7", 9)


def test_stopped_process_is_woken_after_its_time(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "stop+cont worker at 1s for 2s")

    striker.poll(1.0, 0, None)
    striker.poll(2.9, 0, None)
    assert [number for _, number in fakes.sent] == [signal.SIGSTOP]
    striker.poll(3.0, 0, None)

    assert [number for _, number in fakes.sent] == [signal.SIGSTOP, signal.SIGCONT]
    assert striker.is_done


def test_victim_is_waited_for(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "term agent at 1s")

    assert striker.poll(1.0, 0, None) == []
    fakes.alive[2**22 + 3] = "holdfast-agent"

    assert len(striker.poll(2.0, 0, None)) == 1
    assert fakes.sent == [(2**22 + 3, signal.SIGTERM)]


def test_victim_that_never_comes_is_missed(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "term agent at 1s")

    assert striker.poll(1.0 + WAITS_FOR_VICTIM_S, 0, None) == []
    (struck,) = striker.poll(1.1 + WAITS_FOR_VICTIM_S, 0, None)

    assert not struck.has_hit
    assert fakes.sent == []


def test_supervisor_is_the_process_that_was_started(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "kill client at 1s")

    striker.poll(1.0, 0, 2**22 + 1)

    assert fakes.sent == [(2**22 + 1, signal.SIGKILL)]


def test_place_is_full_for_its_time(fakes: FakeTraces) -> None:
    place = FakePlace()
    striker = ordered(fakes, "full stderr at 1s for 2s", stderr=place)

    striker.poll(1.0, 0, None)
    assert place.is_full
    striker.poll(3.0, 0, None)

    assert not place.is_full


def test_end_undoes_everything_and_notes_what_came_too_late(fakes: FakeTraces) -> None:
    place = FakePlace()
    striker = ordered(fakes, "full stderr at 1s", "kill agent at 1s", stderr=place)
    striker.poll(1.0, 0, None)

    striker.end(2.0, 4)

    assert not place.is_full
    assert [struck.has_hit for struck in striker.struck] == [True, False]
    assert striker.is_done


def test_process_that_is_stopped_for_good_is_not_woken(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "stop worker at 1s")

    striker.poll(1.0, 0, None)
    striker.end(99.0, 0)

    assert [number for _, number in fakes.sent] == [signal.SIGSTOP]


def test_process_that_is_gone_when_its_signal_comes_is_no_victim(fakes: FakeTraces) -> None:
    striker = ordered(fakes, "kill client at 1s")

    assert striker.poll(1.0, 0, 2**22 + 9) == []
    (struck,) = striker.poll(2.0, 0, 2**22 + 1)

    assert struck.now == 2.0


def test_stderr_of_the_newest_job_is_filled_and_that_of_the_last_one_released(
    fakes: FakeTraces,
) -> None:
    first, second = FakePlace(), FakePlace()
    striker = ordered(fakes, "full stderr at 1s for 2s", stderr=first)
    striker.poll(1.0, 0, None)

    striker.use(Target.STDERR, second)
    striker.order(parse_strike("full stderr at 2s for 5s"), 2.0)
    striker.poll(3.0, 0, None)

    assert (first.is_full, second.is_full) == (False, True)


def test_strikes_that_wait_and_strikes_that_never_came_are_told_as_missed(
    fakes: FakeTraces,
) -> None:
    striker = ordered(fakes, "kill agent at 1s")
    striker.poll(1.0, 0, None)

    striker.end(5.0, 12, parse_plan("kill pool on failure"))

    told = [(str(s.strike), s.now, s.step, s.victim) for s in striker.struck]
    assert told == [("kill agent at 1s", 5.0, 12, None), ("kill pool on failure", 5.0, 12, None)]


HOSTS = ("a", "b", "c")
STATUS = {
    "hosts": ["c", "b"],
    "workers": [
        to_plain(WorkerReport(worker, pid, "training", 5, 4, None, None, host=host))
        for worker, pid, host in [(7, 2**22 + 2, "a"), (9, 11, "b"), (8, 12, "c"), (6, None, "b")]
    ],
}


class FakeHosts:
    """Hosts whose head answers so, and what was ordered there."""

    def __init__(self, *, is_connected: bool = True) -> None:
        self.is_connected = is_connected
        self.ordered: list[str] = []

    def find(self, strike: Strike) -> FoundVictim | None:
        return choose_on_hosts(strike, HOSTS, STATUS)

    def is_here(self, victim: FoundVictim) -> bool:
        return victim.host == HOSTS[0]

    def strike(self, victim: FoundVictim, strike: Strike) -> bool:
        self.ordered += [f"{strike.blow.kind.value} {victim}"] if self.is_connected else []
        return self.is_connected


@pytest.mark.parametrize(
    ("strike", "victim"),
    [
        ("kill worker #1 at 1s", "w8 of c"),
        ("kill worker #5 at 1s", "w9 of b"),
        ("kill worker of b at 1s", "w9 of b"),
        ("kill agent #4 at 1s", "agent of b"),
        ("kill pool of c at 1s", "pool of c"),
        ("kill host #2 at 1s", "host b"),
        ("kill host c at 1s", "host c"),
        ("kill writer of d at 1s", "None"),
    ],
)
def test_index_chooses_among_the_victims_of_all_hosts(strike: str, victim: str) -> None:
    assert str(choose_on_hosts(parse_strike(strike), HOSTS, STATUS)) == victim


def test_host_that_is_lost_is_no_victim() -> None:
    answer = {"hosts": ["c"], "workers": []}

    assert choose_on_hosts(parse_strike("kill host b at 1s"), HOSTS, answer) is None
    assert str(choose_on_hosts(parse_strike("kill agent #1 at 1s"), HOSTS, answer)) == "agent of c"


def test_victim_of_another_host_is_struck_by_its_agent(fakes: FakeTraces) -> None:
    hosts = FakeHosts()
    striker = Striker(fakes, hosts)
    striker.order(parse_strike("stop+cont host #1 at 1s for 2s"), 1.0)

    (struck,) = striker.poll(1.0, 5, None)

    assert hosts.ordered == ["stop+cont host c"]
    assert struck.victim == "host c"
    assert (fakes.sent, striker.is_done) == ([], True)  # the agent's host wakes itself


def test_victim_of_this_host_is_struck_from_here(fakes: FakeTraces) -> None:
    hosts = FakeHosts()
    striker = Striker(fakes, hosts)
    striker.order(parse_strike("kill worker at 1s"), 1.0)

    striker.poll(1.0, 5, None)

    assert fakes.sent == [(2**22 + 2, signal.SIGKILL)]
    assert hosts.ordered == []


def test_strike_that_did_not_get_to_its_host_waits(fakes: FakeTraces) -> None:
    hosts = FakeHosts(is_connected=False)
    striker = Striker(fakes, hosts)
    striker.order(parse_strike("kill agent of b at 1s"), 1.0)

    assert striker.poll(1.0, 5, None) == []
    hosts.is_connected = True
    assert [struck.victim for struck in striker.poll(2.0, 5, None)] == ["agent of b"]


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
        (Target.CLIENT, {0: 51}),
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
    assert find_victims(Target.CLIENT, NAMES, None) == {}
    assert choose_victim(Target.CLIENT, 0, NAMES, None) is None


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


VARIABLE = "HOLDFAST_TEST_TRACES"

DEAD, OTHER = 2**22 + 1, 2**22 + 11
"""Numbers that no process has: the kernel's largest is 2**22."""


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobTraces]:
    """Traces of a job whose shared memory is a folder of its own."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(striker, "SHARED_MEMORY", tmp_path / "shm")
    made = JobTraces(VARIABLE)
    yield made
    made.kill_all()
    made.remove_files(())


def _segment(folder: Path, name: str) -> Path:
    directory = folder / "shm" / name
    directory.mkdir()
    (directory / "segment").write_bytes(b"some memory")
    return directory


def _family(traces: JobTraces) -> subprocess.Popen[str]:
    """Start a shell with a child, which ignore a polite request; wait until both are there.

    The child answers itself: until it has become `cat`, its environment may look empty.
    """
    process = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; exec 3<&0; cat <&3 & wait"],
        env=traces.environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("begun\n")
    process.stdin.flush()
    assert process.stdout.readline() == "begun\n"
    return process


def test_environment_has_the_mark_and_a_place_for_temporary_files(traces: JobTraces) -> None:
    base = {"HOME": "/home/me", "TMPDIR": "/var/tmp", VARIABLE: "of another job"}

    environment = traces.environment(base)

    assert environment.keys() == {"HOME", "TMPDIR", VARIABLE}
    assert f"{VARIABLE}={environment[VARIABLE]}" == traces.mark
    assert Path(environment["TMPDIR"]) == traces.temporary
    assert traces.temporary.is_dir()
    assert base["TMPDIR"] == "/var/tmp"


def test_two_jobs_have_marks_and_places_of_their_own(traces: JobTraces) -> None:
    other = JobTraces(VARIABLE)

    assert other.mark != traces.mark
    assert other.scratch != traces.scratch
    other.remove_files(())


def test_job_without_traces_has_left_nothing(traces: JobTraces) -> None:
    assert traces.leftovers([DEAD]) == ()


def test_files_of_the_job_are_named_and_those_of_other_jobs_are_not(
    traces: JobTraces, tmp_path: Path
) -> None:
    memory = _segment(tmp_path, f"holdfast-{DEAD}-abcdefgh")
    _segment(tmp_path, f"holdfast-{OTHER}-abcdefgh")
    _segment(tmp_path, f"holdfast-{DEAD}1-abcdefgh")
    (traces.temporary / "forgotten.txt").touch()

    left = traces.leftovers([DEAD, DEAD])

    assert left == (str(memory), str(traces.temporary / "forgotten.txt"))


def test_temporary_directory_that_the_job_has_removed_is_no_leftover(traces: JobTraces) -> None:
    traces.temporary.rmdir()

    assert traces.leftovers([DEAD]) == ()


def test_memory_that_a_living_process_holds_is_not_called_left(
    traces: JobTraces, tmp_path: Path
) -> None:
    """A living client of another job may have got the number of a dead one."""
    held = make_owned_directory(str(tmp_path / "shm"))

    assert traces.leftovers([os.getpid()]) == ()
    traces.remove_files([os.getpid()])
    assert held.is_dir()


def test_files_of_the_job_are_removed_and_those_of_other_jobs_stay(
    traces: JobTraces, tmp_path: Path
) -> None:
    memory = _segment(tmp_path, f"holdfast-{DEAD}-abcdefgh")
    others = _segment(tmp_path, f"holdfast-{OTHER}-abcdefgh")
    (traces.temporary / "forgotten.txt").touch()

    traces.remove_files([DEAD])

    assert not traces.scratch.exists()
    assert not memory.exists()
    assert (others / "segment").exists()


@pytest.mark.process
def test_processes_that_are_left_are_named(traces: JobTraces) -> None:
    family = _family(traces)

    left = traces.leftovers([family.pid])

    assert f"process {family.pid} sh" in left
    assert len(left) == 2
    traces.kill_all()
    family.communicate()


@pytest.mark.process
def test_kill_ends_every_process_of_the_job_and_no_other(traces: JobTraces) -> None:
    other = JobTraces(VARIABLE)
    ours, theirs = _family(traces), _family(other)

    traces.kill_all()

    assert traces.processes() == {}
    assert len(other.processes()) == 2
    other.kill_all()
    other.remove_files(())
    for process in (ours, theirs):
        assert process.communicate()[0] == ""
        assert process.returncode == -9
