"""What the supervisor sees of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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
    """A worker tells that a checkpoint is on the disk."""

    worker: WorkerId
    step: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker's script raised, or could not go on; the process ends next.

    ``is_death`` marks what a relaunch can mend: the exception of a fault plan, or a
    world that could not be repaired.  Everything else would happen again.
    """

    worker: WorkerId
    kind: str
    message: str
    traceback: str
    exit_code: int
    is_death: bool = False

    @property
    def message_with_kind(self) -> str:
        """The message; with the kind of the error where that says something."""
        return f"{self.kind}: {self.message}" if self.traceback else self.message


@dataclass(frozen=True, slots=True)
class WorkerCompleted:
    """A worker has trained to the end."""

    worker: WorkerId
    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker has stopped early, as it was asked to, with a checkpoint."""

    worker: WorkerId
    step: int


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's process is gone; ``is_clean`` if it left by agreement."""

    worker: WorkerId
    is_clean: bool
    cause: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """No process of the launch is left."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the job to stop; ``exit_code`` is that of a job that has to be killed."""

    exit_code: int


Event: TypeAlias = (
    WorkerJoined
    | WorldFormed
    | CheckpointCommitted
    | WorkerFailed
    | WorkerCompleted
    | WorkerStopped
    | WorkerExited
    | LaunchEnded
    | StopAsked
)
