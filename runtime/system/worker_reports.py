"""What a worker reports to its agent, and no event is: how far its script has come.

Events go the same way (`recovery.event`), and on to the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.recovery.world import WorkerId


@dataclass(frozen=True, slots=True)
class TrainingBegun:
    """The script begins its training of this number."""

    worker: WorkerId
    number: int


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """An error has ended a training, and the script may catch it."""

    worker: WorkerId
    error: str


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """The script has come to its end; the worker waits until those of all have."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerLeaving:
    """The worker ends its process by agreement."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class SurvivorsMet:
    """The worker asks whether these survivors are the world that goes on."""

    worker: WorkerId
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class WorkerHalted:
    """What a halted worker holds."""

    worker: WorkerId
    version: int
    """That of the state, -1 if it holds none."""
    is_settled: bool
    saves: int
    """How many saves it has begun."""
    is_saved: bool
    step: int
    words: str
    """What happens to the rest when the run goes on, or why nothing is to be saved."""


@dataclass(frozen=True, slots=True)
class HaltedSaveEnded:
    """The part of a save that a halted worker was told to make is over."""

    worker: WorkerId
    attempt: int
    failure: str
    """Why it has failed, "" if it has not."""


OwnReport = (
    TrainingBegun
    | TrainingFailed
    | ScriptEnded
    | WorkerLeaving
    | SurvivorsMet
    | WorkerHalted
    | HaltedSaveEnded
)
