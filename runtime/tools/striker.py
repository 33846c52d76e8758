"""Strikes from outside: signals to processes of a job, and a stderr that takes nothing.

A strike whose victim is not there yet waits for it, because a job that starts has no workers.  What
lasts for a time is undone by ``poll``.

In a job over several hosts, the head finds the victims of those kinds that every host has, and a
victim of another host is struck by that host's agent (`other_hosts`).

Each process of the job inherits a mark in the environment, and a ``TMPDIR`` of its own.  So all
that the job may leave behind is found, and nothing of another one.  ``holdfast`` names its own
processes.  mpiexec and its guards are found by their command lines, and a guard's rank by its
environment.  The client is the process that was started.
"""

from __future__ import annotations

import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.runtime.host import guard
from holdfast.runtime.system.owned_directory import is_held
from holdfast.runtime.system.processes import (
    command_line,
    marked_processes,
    signal_marked,
    variables_of,
    wait_all_ended,
)
from holdfast.runtime.tools.other_hosts import FoundVictim
from holdfast.runtime.tools.strike import OF_EACH_HOST, SIGNALS, Kind, Strike, Target

WAITS_FOR_VICTIM_S = 10.0
"""A job without the victim for so long has none."""

ENDS_WITHIN_S = 30.0
"""How long processes may outlive ``holdfast run``: the kernel takes a moment for killed ones."""

SHARED_MEMORY = Path("/dev/shm")

_NAMES = {
    Target.AGENT: "holdfast-agent",
    Target.POOL: "holdfast-pool",
    Target.WRITER: "holdfast-writer",
}
_WORKER = re.compile(r"holdfast-w(\d+)")
_RANK = re.compile(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)")
_GUARD_END = f"\0-S\0{guard.__file__}\0"
"""The command lines of mpiexec and of its guards end so; only a guard has a rank."""


class Place(Protocol):
    """Something that can take nothing for a while."""

    def fill(self) -> None:
        """Take nothing from now on."""

    def release(self) -> None:
        """Take everything again."""


class Hosts(Protocol):
    """The hosts of a job over several."""

    def find(self, strike: Strike) -> FoundVictim | None:
        """Return the victim that a strike chooses just now, None if there is none."""

    def is_here(self, victim: FoundVictim) -> bool:
        """Whether it is on this host."""

    def strike(self, victim: FoundVictim, strike: Strike) -> bool:
        """Have a victim of another host struck; return whether the order went there."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A strike that was carried out, or missed; ``now`` is in monotonic seconds."""

    strike: Strike
    now: float
    step: int
    victim: str | None

    @property
    def has_hit(self) -> bool:
        """Whether there was a victim."""
        return self.victim is not None


class Striker:
    """Carries out the strikes on one job; a job on one host has no ``hosts``."""

    def __init__(self, traces: JobTraces, hosts: Hosts | None = None) -> None:
        self._traces = traces
        self._hosts = hosts
        self._places: dict[Target, Place] = {}
        self._waiting: list[tuple[Strike, float]] = []
        self._undone: list[tuple[float, Callable[[], object]]] = []
        self.struck: list[Struck] = []

    @property
    def is_done(self) -> bool:
        """Whether no strike waits for its victim or its end."""
        return not self._waiting and not self._undone

    def use(self, target: Target, place: Place) -> None:
        """Fill this place from now on: each job of a run has a stderr of its own."""
        self._places[target] = place

    def order(self, strike: Strike, now: float) -> None:
        """Take an order; the next ``poll`` carries it out."""
        self._waiting.append((strike, now))

    def poll(self, now: float, step: int, client: int | None) -> list[Struck]:
        """Undo what is over, and strike where there is a victim; return the strikes."""
        for due, undo in [over for over in self._undone if over[0] <= now]:
            self._undone.remove((due, undo))
            undo()
        done: list[Struck] = []
        for strike, since in list(self._waiting):
            victim = self._carry_out(strike, now, client)
            if victim is not None or now - since > WAITS_FOR_VICTIM_S:
                self._waiting.remove((strike, since))
                done.append(Struck(strike, now, step, victim))
        self.struck += done
        return done

    def end(self, now: float, step: int, unstruck: Iterable[Strike] = ()) -> None:
        """Undo everything that lasts, and note the strikes that came too late, or never."""
        for _, undo in self._undone:
            undo()
        self._undone.clear()
        missed = [*(strike for strike, _ in self._waiting), *unstruck]
        self.struck += [Struck(strike, now, step, None) for strike in missed]
        self._waiting.clear()

    def _carry_out(self, strike: Strike, now: float, client: int | None) -> str | None:
        """Strike; return a name for the victim, None if there is none."""
        place = self._places.get(strike.blow.target)
        if place is not None:
            place.fill()
            self._undo_later(now, strike, place.release)
            return strike.blow.target.value
        processes = self._traces.processes()
        if self._hosts is not None and strike.blow.target in OF_EACH_HOST:
            victim = self._hosts.find(strike)
            if victim is None:
                return None
            if not self._hosts.is_here(victim):
                return str(victim) if self._hosts.strike(victim, strike) else None
            pid = find_victims(victim.target, processes, client).get(victim.worker)
        else:
            pid = choose_victim(strike.blow.target, strike.index, processes, client)
        if pid is None or not self._traces.signal(pid, SIGNALS[strike.blow.kind]):
            return None
        if strike.blow.kind is Kind.STOP_CONT:
            self._undo_later(now, strike, lambda: self._traces.signal(pid, signal.SIGCONT))
        return f"{pid} {processes.get(pid, '')}".strip()

    def _undo_later(self, now: float, strike: Strike, undo: Callable[[], object]) -> None:
        self._undone.append((now + (strike.for_s or 0.0), undo))


def find_victims(
    target: Target, processes: Mapping[int, str], client: int | None
) -> dict[int, int]:
    """Return the ids of the processes of one kind, by worker id, by rank, or by 0.

    ``processes`` are those of one job, with their names.
    """
    if target is Target.CLIENT:
        return {} if client is None else {0: client}
    if target is Target.WORKER:
        named = {pid: _WORKER.fullmatch(name) for pid, name in processes.items()}
        return {int(match[1]): pid for pid, match in named.items() if match}
    if target is Target.GUARD:
        ranks = {pid: _rank_of(pid) for pid in _started_with_guard(processes)}
        return {rank: pid for pid, rank in ranks.items() if rank is not None}
    if target is Target.MPIEXEC:
        found = [pid for pid in _started_with_guard(processes) if _rank_of(pid) is None]
    else:
        found = [pid for pid, name in processes.items() if name == _NAMES[target]]
    return dict(enumerate(sorted(found)))


def choose_victim(
    target: Target, index: int, processes: Mapping[int, str], client: int | None
) -> int | None:
    """Return the process that ``index``, modulo their number, chooses; None if there is none."""
    found = find_victims(target, processes, client)
    return found[sorted(found)[index % len(found)]] if found else None


def _started_with_guard(processes: Iterable[int]) -> list[int]:
    """Return mpiexec and its guards."""
    return [pid for pid in processes if command_line(pid).endswith(_GUARD_END)]


def _rank_of(pid: int) -> int | None:
    for variable in variables_of(pid):
        match = _RANK.fullmatch(variable)
        if match:
            return int(match[1])
    return None


class JobTraces:
    """The mark of one job, and what bears it."""

    def __init__(self, variable: str) -> None:
        """Make a mark, the value of ``variable``, and a scratch directory."""
        self.mark = f"{variable}={secrets.token_hex(8)}"
        self.scratch = Path(tempfile.mkdtemp(prefix="holdfast-job-"))
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return ``base`` with the mark, for the first process of the job."""
        name, _, value = self.mark.partition("=")
        return {**base, name: value, "TMPDIR": str(self.temporary)}

    def processes(self) -> dict[int, str]:
        """Return the name of every living process of the job, as ``ps`` shows it, by process id."""
        return marked_processes(self.mark)

    def signal(self, pid: int, *numbers: signal.Signals) -> bool:
        """Send signals to a process of the job, if it still is one; return whether it is."""
        return signal_marked(pid, self.mark, *numbers)

    def leftovers(self, clients: Iterable[int]) -> tuple[str, ...]:
        """Name each process and file that exists now outside the run directory."""
        processes = [f"process {pid} {name}" for pid, name in self.processes().items()]
        kept = self.temporary.iterdir() if self.temporary.is_dir() else ()
        files = (*_shared_memory(clients), *kept)
        return (*processes, *map(str, files))

    def kill_all(self) -> None:
        """SIGKILL every process of the job, and wait until all have ended."""
        while alive := self.processes():
            for pid in alive:
                self.signal(pid, signal.SIGKILL)
            wait_all_ended(alive, ENDS_WITHIN_S)

    def remove_files(self, clients: Iterable[int]) -> None:
        """Remove the scratch directory, and the shared memory of these clients."""
        for directory in (*_shared_memory(clients), self.scratch):
            shutil.rmtree(directory, ignore_errors=True)


def _shared_memory(clients: Iterable[int]) -> list[Path]:
    """Return what these clients have left; a living one may have got the number of a dead one.

    A directory that is held has a living process, which is named by itself if it is the job's.
    """
    found = (path for pid in set(clients) for path in SHARED_MEMORY.glob(f"holdfast-{pid}-*"))
    return sorted(path for path in found if not is_held(path))
