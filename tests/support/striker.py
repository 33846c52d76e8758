"""Signals to any process of a job from outside, and a run that is started again until it ends.

The one striker of ``ci/soak``, ``ci/matrix``, ``ci/cluster`` and ``bench/goodput.py``.
``holdfast`` names its own processes.  mpiexec and its guards are found by their command lines, a
guard's rank by its environment, and the client is the process that was started.

A moment is an event of the journal, so the same strike hits the same phase on any machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from pathlib import Path

from holdfast.recovery.errors import ExitCode
from holdfast.runtime.host import guard
from holdfast.runtime.run.journal import Record
from holdfast.runtime.system.processes import variables_of
from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

STOPS_FOR_S = 3.0
"""How long ``stop+cont`` lasts, if nobody says: less than any limit of a watcher."""
_WAITS_FOR_VICTIM_S = 10.0
"""A job without the victim for so long has none."""
_OWNED_PAUSE_S = 3.0
_OWNED_FOR_S = 60.0
"""After so long a client that was stopped is let go on: its agent may stand as well."""
_LOOK_S = 0.02
_AGAIN = (ExitCode.STOPPED_EARLY, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_BUSY = ExitCode.RUN_DIRECTORY_BUSY

_RANK = re.compile(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)")
_GUARD_END = f"\0-S\0{guard.__file__}\0".encode()
"""The command lines of mpiexec and of its guards end so; only a guard has a rank."""


class Kind(Enum):
    """What is done."""

    KILL = "kill"
    STOP = "stop"
    STOP_CONT = "stop+cont"
    TERM = "term"


class Target(Enum):
    """The process it is done to."""

    WORKER = "worker"
    GUARD = "guard"
    AGENT = "agent"
    POOL = "pool"
    WRITER = "writer"
    MPIEXEC = "mpiexec"
    CLIENT = "client"
    HOST_AGENT = "host-agent"
    """The agent of a host other than the head's."""
    WATCHDOG = "watchdog"
    """The process beside it that ends a host which stands still."""


SIGNALS = {
    Kind.KILL: signal.SIGKILL,
    Kind.STOP: signal.SIGSTOP,
    Kind.STOP_CONT: signal.SIGSTOP,
    Kind.TERM: signal.SIGTERM,
}
OF_ONE_HOST = tuple(Target)[:-2]
_NAMES = {
    Target.WORKER: re.compile(r"holdfast-w(\d+)"),
    Target.AGENT: re.compile(r"holdfast-agent"),
    Target.POOL: re.compile(r"holdfast-pool"),
    Target.WRITER: re.compile(r"holdfast-writer"),
    Target.HOST_AGENT: re.compile(r"holdfast-host"),
    Target.WATCHDOG: re.compile(r"holdfast-watch"),
}


def find_victims(
    target: Target, processes: Mapping[int, str], client: int | None = None
) -> list[int]:
    """Return the processes of one kind, by worker id or rank; ``processes`` are those of a job."""
    if target is Target.CLIENT:
        return [] if client is None else [client]
    if target in _NAMES:
        named = {pid: _NAMES[target].fullmatch(name) for pid, name in processes.items()}
        found = {pid: [int(n) for n in match.groups()] for pid, match in named.items() if match}
    else:
        ranks = {pid: _rank_of(pid) for pid in processes if _is_of_launch(pid)}
        wanted = target is Target.GUARD
        found = {pid: [rank or 0] for pid, rank in ranks.items() if (rank is not None) == wanted}
    return sorted(found, key=lambda pid: (found[pid], pid))


def _is_of_launch(pid: int) -> bool:
    """Whether it is mpiexec, or a guard that mpiexec has started."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(_GUARD_END)
    return False


def _rank_of(pid: int) -> int | None:
    ranks = [match for variable in variables_of(pid) if (match := _RANK.fullmatch(variable))]
    return int(ranks[0][1]) if ranks else None


@dataclass(frozen=True, slots=True)
class Strike:
    """A signal, when the journal holds the step ``number``, or so many records of another event.

    ``second`` is an event as well, of which each second of the run has one.  ``index`` chooses
    among several processes of the kind, modulo their number.
    """

    kind: Kind
    target: Target
    index: int = 0
    event: str = "step"
    number: float = 0
    for_s: float = STOPS_FOR_S

    def is_due(self, journal: Sequence[Record], seconds: float) -> bool:
        """Whether its moment has come."""
        if self.event == "second":
            return seconds >= self.number
        found = [record for record in journal if record["event"] == self.event]
        if self.event == "step":
            return not self.number or any(record["step"] >= self.number for record in found)
        return len(found) >= self.number

    def __str__(self) -> str:
        index = f" #{self.index}" if self.index else ""
        return f"{self.kind.value} {self.target.value}{index} on {self.event} {self.number:g}"


Blow = tuple[Kind, Target]
BLOWS: tuple[Blow, ...] = tuple(product(Kind, OF_ONE_HOST))
_EVENTS = ("launch", "world", "checkpoint", "failure", "completed")
"""Starting, training again, in a save, in a repair, ending."""


def blows_of(text: str) -> tuple[Blow, ...]:
    """Return what a list such as ``kill, stop agent`` names; raises ``ValueError``."""
    wishes = [set(part.split()) for part in text.split(",")]
    found = [blow for blow in BLOWS for wish in wishes if wish <= {part.value for part in blow}]
    if not found:
        words = ", ".join(choice.value for choice in (*Kind, *OF_ONE_HOST))
        raise ValueError(f"no strike is {text!r}; words: {words}")
    return tuple(found)


def random_strikes(
    choose: random.Random, count: int, steps: int, blows: Sequence[Blow]
) -> Iterator[Strike]:
    """Yield so many strikes on a run of ``steps``, some of them at events other than steps."""
    for _ in range(count):
        event, number = "step", choose.randint(0, steps)
        if choose.random() < 0.4:
            event, number = choose.choice(_EVENTS), choose.randint(1, 2)
        yield Strike(*choose.choice(blows), choose.randrange(60), event, number)


def strikes_by_the_clock(
    choose: random.Random, mtbf_s: float, until_s: float, blows: Sequence[Blow]
) -> Iterator[Strike]:
    """Yield strikes whose gaps are exponential, as those of machines that fail at any age."""
    second = 0.0
    while (second := second - mtbf_s * math.log(1.0 - choose.random())) < until_s:
        yield Strike(*choose.choice(blows), choose.randrange(60), "second", second)


@dataclass(frozen=True, slots=True)
class Struck:
    """A strike that was carried out at a monotonic second, or missed: then there is no victim."""

    strike: Strike
    at: float
    pid: int | None


class Striker:
    """Carries strikes out on the jobs of a run, of which the last is the current one."""

    def __init__(self, strikes: Sequence[Strike]) -> None:
        self._began = time.monotonic()
        self._coming = list(strikes)
        self._waiting: list[tuple[Strike, float]] = []
        self._asleep: list[tuple[float, int]] = []
        self.struck: list[Struck] = []
        self.standing: set[int] = set()
        """Clients that were stopped for good."""

    @property
    def is_done(self) -> bool:
        """Whether all strikes were carried out or missed, and nobody has to be woken."""
        return not (self._coming or self._waiting or self._asleep)

    def poll(self, jobs: Sequence[RunningJob]) -> None:
        """Wake whose time is over, and strike where there is a victim."""
        now = time.monotonic()
        for due, pid in [over for over in self._asleep if over[0] <= now]:
            self._asleep.remove((due, pid))
            _send(pid, signal.SIGCONT)
        is_told = any(strike.event != "second" for strike in self._coming)
        journal = jobs[-1].journal if is_told else []
        for strike in [one for one in self._coming if one.is_due(journal, now - self._began)]:
            self._coming.remove(strike)
            self._waiting.append((strike, now))
        for strike, since in list(self._waiting):
            victim = self._carry_out(strike, jobs, now)
            if victim is not None or now - since > _WAITS_FOR_VICTIM_S:
                self._waiting.remove((strike, since))
                self.struck.append(Struck(strike, now, victim))

    def _carry_out(self, strike: Strike, jobs: Sequence[RunningJob], now: float) -> int | None:
        processes = {pid: name for job in jobs for pid, name in job.processes().items()}
        found = find_victims(strike.target, processes, jobs[-1].pid)
        if not found:
            return None
        pid = found[strike.index % len(found)]
        if not _send(pid, SIGNALS[strike.kind]):
            return None
        if strike.kind is Kind.STOP_CONT:
            self._asleep.append((now + strike.for_s, pid))
        elif (strike.kind, strike.target) == (Kind.STOP, Target.CLIENT):
            self.standing.add(pid)
        return pid

    def wake(self) -> None:
        """Let all that stand go on."""
        for pid in (*self.standing, *(pid for _, pid in self._asleep)):
            _send(pid, signal.SIGCONT)
        self.standing, self._asleep = set(), []

    def end(self) -> None:
        """Wake everybody, and note the strikes that came too late."""
        self.wake()
        missed = [*(strike for strike, _ in self._waiting), *self._coming]
        self.struck += [Struck(strike, time.monotonic(), None) for strike in missed]


def _send(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


@dataclass(frozen=True, slots=True)
class StruckRun:
    """A run and all its jobs; ``ended`` is None if it did not come to its end: see ``failure``."""

    ended: JobRun | None
    failure: str
    exit_codes: tuple[int, ...]
    struck: tuple[Struck, ...]
    leftovers: tuple[str, ...]
    began: float
    seconds: float

    def complaints(self, sha256: str) -> Iterator[str]:
        """Yield a sentence for each thing that must hold after any strike and does not."""
        if self.ended is None:
            yield self.failure
            return
        if self.ended.sha256 != sha256:
            yield f"wrong bytes: {self.ended.sha256} instead of {sha256}\n{self.ended.stderr}"
        if not all(epoch.exact for epoch in self.ended.report.epochs):
            yield f"the ledger is not exact: {self.ended.report.epochs}"
        yield from (f"left behind: {what}" for what in self.leftovers)
        targets = {struck.strike.target for struck in self.struck if struck.pid is not None}
        if Target.CLIENT not in targets:
            killed = [code for code in self.exit_codes if code < 0]
            yield from (f"a client died of signal {-code}, which nobody sent" for code in killed)


def run_struck(
    request: JobRequest,
    strikes: Sequence[Strike],
    *,
    within_s: float,
    when_done: Callable[[], object] = lambda: None,
    again: Collection[int] = _AGAIN,
) -> StruckRun:
    """Run a job to its end while it is struck; leave no process and no file of it behind.

    ``holdfast run`` is typed again after the codes ``again``, as a batch system does, after the
    death of its client, and beside one that stands still.  ``when_done`` is called after the last
    strike.
    """
    began = time.monotonic()
    striker, codes, failure = Striker(strikes), list[int](), ""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(start_job(request, timeout_s=within_s))]
        owned_since: float | None = None
        while not failure and codes[-1:] != [0]:
            time.sleep(_LOOK_S)
            striker.poll(jobs)
            if striker.is_done:
                when_done()
            code = jobs[-1].exit_code
            if time.monotonic() - began > within_s:
                failure = "it did not end"
            elif code is None and jobs[-1].pid not in striker.standing:
                continue
            elif code is not None:
                codes.append(code)
                if code == _BUSY:
                    owned_since = owned_since or time.monotonic()
                    if time.monotonic() - owned_since > _OWNED_FOR_S:
                        striker.wake()
                    time.sleep(_OWNED_PAUSE_S)
                elif code > 0 and code not in again:
                    failure = f"it ended with exit code {code}"
            if not failure and code != 0:
                jobs.append(stack.enter_context(start_job(request, timeout_s=within_s)))
        seconds = time.monotonic() - began
        if failure:
            failure = f"{failure} within {seconds:.0f} s: {_story(jobs)}"
        striker.end()
        ended = [] if failure else [job.wait() for job in jobs]
        leftovers = tuple(what for job in jobs for what in job.leftovers()) if ended else ()
    last = ended[-1] if ended else None
    return StruckRun(last, failure, tuple(codes), tuple(striker.struck), leftovers, began, seconds)


def _story(jobs: Sequence[RunningJob]) -> str:
    """Return the processes, the end of the journal, and what each client has said."""
    alive = {pid: name for job in jobs for pid, name in job.processes().items()}
    lines = [f"alive: {alive}", *map(str, jobs[-1].journal[-12:])]
    return "\n    ".join([*lines, *(job.stderr[-2000:] for job in jobs)])
