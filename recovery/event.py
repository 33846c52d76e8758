"""The events that the head sees, the commands that it gets, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.world import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker has initialised MPI."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorldFormed:
    """A world was agreed on and is about to train from ``step``."""

    generation: int
    workers: tuple[WorkerId, ...]
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A worker reports that a checkpoint is on the disk."""

    worker: WorkerId
    step: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker's script raised, or could not go on; the process ends next.

    ``is_death`` marks a failure that a relaunch can cure: the exception of a fault plan, or
    a world that could not be repaired.  Any other failure would happen again.
    ``is_in_training`` marks one that has ended a training, not the script before or after it.
    """

    worker: WorkerId
    kind: str
    message: str
    traceback: str
    exit_code: ExitCode
    is_death: bool = False
    is_in_training: bool = False

    @property
    def message_with_kind(self) -> str:
        """The message; if there is a traceback, the kind of the error comes first."""
        return f"{self.kind}: {self.message}" if self.traceback else self.message


@dataclass(frozen=True, slots=True)
class WorkerCompleted:
    """A worker has trained to the end; the rest of its script is still to be done.

    ``is_first`` marks the one worker that was told to do what only one may do, such as
    writing the model.
    """

    worker: WorkerId
    step: int
    sha256: str
    is_first: bool


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker has stopped early, on request, with a checkpoint.

    ``words`` say what was saved, and what is done again, if it was halted in the middle of it.
    """

    worker: WorkerId
    step: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process is gone; ``is_clean`` tells whether it left by agreement."""

    worker: WorkerId
    is_clean: bool
    cause: str


@dataclass(frozen=True, slots=True)
class LaunchRenewing:
    """The workers of ``worker``'s launch were asked to make room for a launch of all workers."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class DirectoryLost:
    """The run directory is gone, or another job's: this job can save nothing any more."""

    exit_code: ExitCode
    reason: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """No process of the launch is left."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class LaunchOverdue:
    """The launch has been in one situation for longer than its bound."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimeIsShort:
    """So little of the job's time is left that a launch of all workers is not worth its start."""


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """The hosts that are left, or may come back, take so many workers."""

    slots: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A request to stop the job; ``exit_code`` applies if the job is killed while it trains."""

    exit_code: ExitCode


Event: TypeAlias = (
    WorkerJoined
    | WorldFormed
    | CheckpointCommitted
    | WorkerFailed
    | WorkerCompleted
    | WorkerStopped
    | WorkerExited
    | LaunchRenewing
    | LaunchEnded
    | LaunchOverdue
    | TimeIsShort
    | SlotsChanged
    | StopAsked
    | DirectoryLost
)


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
    """Ask all workers to save at the next step and stop; a launch of all workers follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    exit_code: ExitCode
    reason: str
    traceback: str = ""
    is_failure: bool = False
    """Whether an error of the workers has ended it, with any exit code."""


Command: TypeAlias = Launch | KillLaunch | AbandonLaunch | AskToSave | AskToStop | Renew | End
