"""What the launch part and a host part tell each other, and the way that a message takes.

The *launch part* (`HostedLaunch`) decides about all workers of a launch.  A *host part* (`Host`)
has the processes of one host and does what needs its kernel.  They share no object but the status
of each worker, of which every word has one writer: on another host it may be a mirror.  So a job
on one host runs the code of one on several, and a message may go through a queue or as JSON.

Messages to one peer arrive in the order in which they were sent, and one at a time.  The numbers
of a launch and of a worker in it name a worker, and a message about one that is gone is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.recovery.event import (
    AbandonLaunch,
    AskToSave,
    AskToStop,
    DropPrepared,
    Event,
    KillLaunch,
    Launch,
    Renew,
    WorkInHand,
)
from holdfast.recovery.saves import SaveNews
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.launchers import ON_ONE_HOST, LaunchTerms
from holdfast.runtime.host.pool_process import Forked, LetBegin
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.journal import Records
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.saving.save_messages import Hurry, PlanSaves, WriterWork
from holdfast.runtime.system.network import Meeting
from holdfast.runtime.system.worker_status import OwnReport, WorkerStatus


@dataclass(frozen=True, slots=True)
class MpiOrder:
    """The head's part of mpiexec's command line."""

    mpiexec: Path
    library: str
    """The name of the MPI that it belongs to."""
    ulfm: bool
    terms: LaunchTerms = ON_ONE_HOST


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """Start these workers, and mpiexec with them if it is named.

    A launch that is prepared starts beside the one that trains; its workers wait before their
    script.  ``relaunch`` and ``spent`` are the job's account, for a head that goes on from here.
    """

    config: WorkerConfig
    mpi: MpiOrder | None = None
    relaunch: int = 0
    spent: int = 0

    @property
    def launch(self) -> Launch:
        """The launch that another head takes over."""
        generation, workers = self.config.generation, self.config.workers
        return Launch(generation, workers, self.relaunch, "taken over", self.spent)


Order = LaunchOrder | DropPrepared | KillLaunch | AbandonLaunch | AskToSave | AskToStop | Renew
"""What the head has an agent do."""


@dataclass(frozen=True, slots=True)
class PrepareLaunch:
    """Another launch is prepared beside the one that trains, and may follow it."""

    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class BeginLaunch:
    """Another launch begins; nobody is watched before ``Watch``.

    If it was prepared, its workers run their script from now on.
    The worker of the configuration is shown.  All others are told the same, but for their number.
    """

    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class MakeWorkers:
    """Make these workers of the launch; each waits for its guard."""

    generation: int
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """mpiexec starts ranks: from now on a silent worker is fenced."""


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker, or as soon as it exists; the first reason is kept."""

    generation: int
    worker: WorkerId
    why: str
    limit: str | None = None
    """The limit that it was killed for, None for any other death."""


@dataclass(frozen=True, slots=True)
class LetLeave:
    """The scripts of all workers, on all hosts, have come to their end."""

    generation: int


@dataclass(frozen=True, slots=True)
class NameWorld:
    """The world of survivors that a worker has asked for goes on, under this number."""

    generation: int
    worker: WorkerId
    world: int


@dataclass(frozen=True, slots=True)
class Inquire:
    """Find out what workers do; each one that is alive then is ``Found``."""

    case: int
    generation: int
    workers: tuple[WorkerId, ...]
    is_evidence: bool = True
    """Whether it belongs to the death of such a worker, if that follows."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget all workers, although their processes may hang in the kernel, and begin anew."""

    why: str


@dataclass(frozen=True, slots=True)
class Lead:
    """A world has this first worker: show its lines, and of no other one."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Meet:
    """Listen for the other hosts on the job's network, or come to those that do."""

    trial: int
    network: str
    word: str
    meetings: tuple[Meeting, ...] = ()


@dataclass(frozen=True, slots=True)
class Describe:
    """Tell what only the host knows of its workers, for a person who asks."""


Down = (
    PrepareLaunch
    | BeginLaunch
    | MakeWorkers
    | LetBegin
    | Watch
    | KillWorker
    | LetLeave
    | NameWorld
    | Inquire
    | WriterWork
    | PlanSaves
    | Hurry
    | Abandon
    | Lead
    | Meet
    | Describe
)
"""What a host part is told."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker runs no code any more: its guard may go, so that MPI tells the survivors."""

    generation: int
    worker: WorkerId
    why: str


@dataclass(frozen=True, slots=True)
class Read:
    """A worker that restores has read so many characters."""

    generation: int
    worker: WorkerId
    characters: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at the host is over."""

    is_inquiring: bool
    """Whether a worker is about to be killed for its silence."""
    read: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a worker does, as far as it could be found out."""

    case: int
    generation: int
    worker: WorkerId
    where: str
    stacks: str
    is_reading: bool
    samples: WorkInHand | None


@dataclass(frozen=True, slots=True)
class Met:
    """Where the host listens, or why it does not reach each of those that it came to, "" if so."""

    trial: int
    meetings: tuple[Meeting, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """What a host knows of one of its workers, for a person who asks."""

    generation: int
    worker: WorkerId
    resident_bytes: int | None
    silent_s: float | None
    """For how long its counter has stood still, None if it is not watched."""


Up = (
    Event
    | OwnReport
    | Forked
    | Killed
    | Seen
    | Found
    | SaveNews
    | PlanSaves
    | Met
    | Described
    | LogText
    | Records
)
"""What the launch part is told.

Who gets ``WorkerExited`` closes the worker's status: it is the last word about it.
"""

News = Event | PlanSaves | LogText | Records
"""What the head is told."""


class HostLink(Protocol):
    """A host, as the launch part sees it: the one that it is on itself, or another one."""

    @property
    def name(self) -> str:
        """Its name; empty for the host of the launch part, where it does not matter."""

    @property
    def unheard_s(self) -> float:
        """For how long it has not answered: what it has told last is as old as that."""

    @property
    def leased_s(self) -> float:
        """For how long its workers may live on, at most, if it is lost now."""

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        """Tell the host part something; it owns ``fds`` from then on."""

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        """Return the status of a worker that it was told to make, or the mirror of that."""


class Queue:
    """Calls that are made one at a time, in order: a call from within a call waits for its end."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._is_calling = False

    def put(self, call: Callable[[], None]) -> None:
        """Make ``call``, now or when those before it are over."""
        self._calls.append(call)
        if self._is_calling:
            return
        self._is_calling = True
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            self._is_calling = False
