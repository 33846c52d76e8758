"""What workers, the agent and its writer tell each other about saves.

The bytes of a save lie in memory.  The plan (`SavePlan`) and the cursor are texts of JSON that
the agent does not read.  What the head hears of saves, and orders, stands in `recovery.saves`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.recovery.saves import (
    CommitSave,
    MakeSpace,
    PartHeld,
    RemoveSave,
    SaveCommitted,
    SaveRemoved,
    SaveTicket,
    ShareWritten,
    SpaceMade,
    WorkFailed,
    WriteShare,
)
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.checkpoint_events import CopiesTold, StepCopied
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records


@dataclass(frozen=True, slots=True)
class AskMemory:
    """Give the memory of a layout: buffers of one size, of which so many bytes are ever written."""

    layout: str
    size: int
    nbytes: int
    most: int | None = None
    """The bytes that the user allows for all of them."""


@dataclass(frozen=True, slots=True)
class UseMemory:
    """The buffers that come along are those of this launch and layout."""

    launch: int
    layout: str


@dataclass(frozen=True, slots=True)
class AskHeld:
    """Is the save of this step in memory?"""

    step: int


@dataclass(frozen=True, slots=True)
class HeldSave:
    """The memory that comes along holds a save by this plan; none does if there is no plan."""

    plan: str = ""
    share: int = 0
    hosts: int = 1


@dataclass(frozen=True, slots=True)
class PlanSaves:
    """The plan of the saves of this world, in the memory of this layout."""

    generation: int
    layout: str
    plan: str
    share: int
    """The number of the host among the ``hosts`` that save."""
    hosts: int


@dataclass(frozen=True, slots=True)
class PartCopied:
    """A worker has copied its part of a save, and has a row of it in the memory."""

    ticket: SaveTicket
    share: int
    """That of its host."""
    seconds: float
    """For how long the save has lasted."""
    cursor: str | None = None
    """JSON, from the first worker of the world."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """Nobody wants to wait for the writer any longer than a moment."""


@dataclass(frozen=True, slots=True)
class DiskMoved:
    """The disk does not hang, and so many bytes are being written."""

    nbytes: int


OfWorker: TypeAlias = (
    AskMemory | AskHeld | PlanSaves | PartCopied | PartHeld | ShareWritten | WorkFailed
)
"""The last three come from a worker that writes from its own state, for lack of memory."""
WriterWork: TypeAlias = WriteShare | CommitSave | MakeSpace | RemoveSave
"""Each is answered once, in order."""
WriterAnswer: TypeAlias = ShareWritten | SaveCommitted | SpaceMade | SaveRemoved | WorkFailed
ToWriter: TypeAlias = UseMemory | PlanSaves | WriterWork
OfWriter: TypeAlias = WriterAnswer | DiskMoved | Notice | Records


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Copy the steps of this run."""

    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class LookAgain:
    """A step was committed, perhaps in the place of one with its number."""

    step: int


@dataclass(frozen=True, slots=True)
class EndCopies:
    """The job is over: copy what is left, and end."""


@dataclass(frozen=True, slots=True)
class CopyMoves:
    """The place takes what it is sent."""


ToCopier: TypeAlias = CopyRun | PlanSaves | LookAgain | EndCopies
OfCopier: TypeAlias = StepCopied | CopiesTold | CopyMoves
