"""What happens to a job, and what the head commands.

Each thing that happens is one frozen dataclass: the message by which a process tells it, what the
`JobMachine` decides by, and the line of the journal.  ``describe`` makes its sentence, whoever
shows it.  Here are the events that decisions need; the others are in ``runtime/run``.  A new event
is a class, and a call where it happens; the report shows it if it is ``listed="notices"``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.world import WorkerId

LOST_WITH_ITS_HOST = "host"
"""The limit of a death that follows from the loss of its host."""

EVENTS: dict[str, type[Event]] = {}
"""Every event that a journal may hold, by its name there."""


@dataclass(frozen=True)
class Event:
    """Something that has happened.

    The keywords of a subclass are its ``name`` in the journal (none if it is not recorded), its
    ``sentence``, with fields in braces, whether people are told of it (they are not if the status
    shows it anyway), the field of the report that lists all of its kind, and the fields that the
    report leaves out.
    """

    NAME: ClassVar[str] = ""
    SENTENCE: ClassVar[str] = ""
    IS_TOLD: ClassVar[bool] = True
    LISTED: ClassVar[str | None] = None
    HIDDEN: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(
        cls,
        *,
        name: str = "",
        sentence: str = "",
        is_told: bool = True,
        listed: str | None = None,
        hidden: Iterable[str] = (),
    ) -> None:
        cls.NAME, cls.SENTENCE, cls.IS_TOLD = name, sentence, is_told
        cls.LISTED, cls.HIDDEN = listed, frozenset(hidden)
        if name:
            EVENTS[name] = cls

    def within(self, generation: int) -> Event:
        """Return the event with the world in which it has happened, if its class names one."""
        if getattr(self, "generation", 0) is not None:
            return self
        changed: Any = {"generation": generation}
        return dataclasses.replace(self, **changed)

    def describe(self) -> str:
        """Return the event in a sentence; that of a class without one is its text."""
        return self.SENTENCE.format_map(vars(self)) or str(getattr(self, "text", ""))


@dataclass(frozen=True, slots=True)
class WorkInHand:
    """The microbatch that a worker is computing: of which update (from 1), and its samples."""

    step: int
    microbatch: int
    count: int
    ids: tuple[int, ...]
    """The first samples of the ``count``."""
    is_validation: bool


@dataclass(frozen=True)
class WorkerJoined(Event):
    """A worker has initialised MPI."""

    worker: WorkerId


@dataclass(frozen=True)
class WorldFormed(Event, name="world", is_told=False):
    """A world was agreed on and is about to train from ``step``."""

    generation: int
    workers: tuple[WorkerId, ...]
    step: int
    capacity: int | None = None


@dataclass(frozen=True)
class WorldNamed(Event):
    """Survivors were told that they are the world that goes on."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True)
class CheckpointCommitted(Event):
    """A worker reports that a checkpoint is on the disk, so long after the save began.

    ``step_s`` is how long the longest step of its training has taken.
    """

    worker: WorkerId
    step: int
    seconds: float | None = None
    step_s: float = 0.0


@dataclass(frozen=True)
class WorkerFailed(Event):
    """A worker's script raised, or could not go on; the process ends next.

    ``is_death`` marks a failure that a relaunch can cure: the exception of a fault plan, or
    a world that could not be repaired.  Any other failure would happen again.
    ``is_in_training`` marks one that has ended a training, not the script before or after it.
    """

    worker: WorkerId
    error_type: str
    message: str
    traceback: str
    exit_code: ExitCode
    is_death: bool = False
    is_in_training: bool = False
    where: str = ""
    """The line of the script."""

    @property
    def message_with_kind(self) -> str:
        """The message; if there is a traceback, the kind of the error comes first."""
        return f"{self.error_type}: {self.message}" if self.traceback else self.message


@dataclass(frozen=True)
class WorkerCompleted(Event, name="completed", sentence="completed step {step}"):
    """A worker has trained to the end, or its script's ``error`` has ended the training.

    The rest of its script is still to be done.  ``is_first`` marks the one worker that was told to
    do what only one may do, such as writing the model.
    """

    worker: WorkerId
    step: int
    sha256: str | None
    is_first: bool | None = None
    epochs: int | None = None
    metrics: Mapping[str, float] | None = None
    validation: Mapping[str, float] | None = None
    error: str | None = None
    generation: int | None = None


@dataclass(frozen=True)
class WorkerStopped(Event, name="stopped"):
    """A worker has stopped early, on request, with a checkpoint.

    ``words`` say what was saved, and what is done again, if it was halted in the middle of it.
    """

    worker: WorkerId
    step: int
    words: str | None = None
    generation: int | None = None

    def describe(self) -> str:
        return self.words or f"stopped at step {self.step} with a checkpoint"


@dataclass(frozen=True)
class WorkerExited(
    Event, name="failure", listed="failures", hidden=["is_clean", "where", "peak_bytes"]
):
    """A worker's process is gone; ``is_clean`` tells whether it left by agreement.

    Only a death is recorded.
    """

    worker: WorkerId
    cause: str
    is_clean: bool = False
    step: int | None = None
    phase: str | None = None
    fenced: bool = False
    generation: int | None = None
    limit: str | None = None
    """The limit that it was killed for: heartbeat, stall (all others waited for it), failed (its
    script has caught an error), standstill (all waited for each other), reading, leaving,
    unkillable, or host."""
    launch_rank: int | None = None
    host: str | None = None
    """The name of its host, if the job has several."""
    core: int | None = None
    stderr: tuple[str, ...] = ()
    where: str = ""
    """The line of the script whose exception ended it."""
    traceback: str = ""
    """Of that exception, from the script's own first call on."""
    stacks: str = ""
    samples: WorkInHand | None = None
    peak_bytes: int | None = None
    """The most that it had in memory."""
    collateral: bool = False
    """Whether it was killed together with others, and not for anything of its own."""
    job: int | None = None
    """The number of the run's job that it belonged to, from 1; the report adds it."""
    after_s: float | None = None
    """Its time, from the begin of that job; the report adds it."""

    def describe(self) -> str:
        after = "" if self.step is None else f" after step {self.step}"
        place = f", in {self.where}" if self.where else ""
        return f"worker {self.worker} died{after} ({self.cause}){place}"


@dataclass(frozen=True)
class RunDirectoryLost(Event):
    """The run directory is gone, or another job's: this job can save nothing any more."""

    exit_code: ExitCode
    reason: str


@dataclass(frozen=True)
class LaunchEnded(Event):
    """No process of the launch is left."""

    reason: str = ""


@dataclass(frozen=True)
class LaunchOverdue(Event):
    """The launch has been in one situation for longer than its bound."""

    reason: str


@dataclass(frozen=True)
class TimeIsShort(Event):
    """So little of the job's time is left that a launch of all workers is not worth its start."""


@dataclass(frozen=True)
class HostLost(Event, name="host_lost"):
    """A host is gone with its workers; the others go on, or are relaunched, without it."""

    host: str
    reason: str
    workers: tuple[WorkerId, ...]
    slots: int | None = None
    """How many workers the hosts take that are left, or may come back."""
    leased_s: float | None = None
    """For how long its workers may live on, at most."""

    def describe(self) -> str:
        workers = ", ".join(map(str, self.workers))
        them = f" with its workers ({workers})" if workers else ""
        return f"host {self.host} was lost{them}: {self.reason}"


@dataclass(frozen=True)
class HostBack(
    Event, name="host_back", sentence="host {host} is back, and takes workers of the next launch"
):
    """A host that was lost answers again, and takes workers of the next launch."""

    host: str
    slots: int | None = None


@dataclass(frozen=True)
class ScaleAsked(Event, name="scale_asked", sentence="the number of workers is to be {workers}"):
    """A user wants another number of workers, without spares."""

    workers: int


@dataclass(frozen=True)
class LaunchWanted(Event):
    """A launch of as many workers as have a place is to follow the one that trains."""

    reason: str


@dataclass(frozen=True)
class LaunchPrepared(Event):
    """The workers of a prepared launch have initialised MPI, and wait before their script."""

    generation: int


@dataclass(frozen=True)
class PreparationFailed(
    Event,
    name="preparation_failed",
    sentence="another launch could not be prepared: {reason}",
    listed="notices",
    hidden=["generation"],
):
    """A launch that was to follow the one that trains is gone; that trains on."""

    generation: int
    reason: str


@dataclass(frozen=True)
class StopAsked(Event):
    """A request to stop the job; ``exit_code`` applies if the job is killed while it trains."""

    exit_code: ExitCode


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an MPI job of ``workers``, in rank order, whose first world has ``generation``.

    ``relaunch`` and ``spent`` are the job's account: how many relaunches there were, and what
    they have charged.  Another head goes on from there.
    """

    generation: int
    workers: tuple[WorkerId, ...]
    relaunch: int
    reason: str
    spent: int = 0
    is_renewal: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Start a launch beside the one that trains; its workers wait before their script."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class DropPrepared:
    """Kill the workers of a prepared launch, which no one needs any more."""


@dataclass(frozen=True, slots=True)
class KillLaunch:
    """Kill every process of the launch; if it is urgent, a user waits for the end."""

    reason: str
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class AbandonLaunch:
    """Give the launch up, whose processes do not even end when killed; then it has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskToSave:
    """Ask all workers for a checkpoint, beside the training."""


@dataclass(frozen=True, slots=True)
class AskToStop:
    """Ask all workers to save at the next step and stop."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask all workers to save at the next step and stop; the prepared launch follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    exit_code: ExitCode
    reason: str
    traceback: str = ""
    is_failure: bool = False
    """Whether an error of the workers has ended it, with any exit code."""


Command: TypeAlias = (
    Launch
    | Prepare
    | DropPrepared
    | KillLaunch
    | AbandonLaunch
    | AskToSave
    | AskToStop
    | Renew
    | End
)
