"""What workers, the agent and its writer tell each other about saves.

What is large lies in memory beside a message: the plan (`SavePlan`), and the cursor of a save,
which comes with the part of the first worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records


@dataclass(frozen=True, slots=True)
class SaveTicket:
    """One save: whose, of which step, in how many parts, and in which memory.

    ``launch`` is the launch's first generation.  ``generation`` is the number that the head has
    given to the world that saves, and to no other one.  ``began`` is in seconds of the monotonic
    clock, which all processes of a host share.
    """

    launch: int
    generation: int
    step: int
    attempt: int
    parts: int
    began: float
    buffer: int = 0
    layout: str = ""
    """The name of the memory that it lies in, "" for a worker's own."""

    @property
    def age(self) -> tuple[int, int]:
        """Generation and attempt; the later of two saves of a run has the larger pair."""
        return self.generation, self.attempt

    @property
    def key(self) -> tuple[int, int, int]:
        """The name of the staged save: step, generation and attempt."""
        return self.step, self.generation, self.attempt

    @property
    def number(self) -> tuple[int, int]:
        """Launch and attempt, which rise with each save that a host answers."""
        return self.launch, self.attempt

    @property
    def memory(self) -> UseMemory:
        """The memory of its launch and layout."""
        return UseMemory(self.launch, self.layout)


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
class PlanSaves:
    """The plan that comes along holds for this world, and for those after it.

    The writer of one host alone looks after old steps.
    """

    generation: int
    has_maintenance: bool = True


@dataclass(frozen=True, slots=True)
class PartCopied:
    """A worker has copied its part of a save; ``digest`` is that of its whole state."""

    ticket: SaveTicket
    part: int
    digest: str


@dataclass(frozen=True, slots=True)
class SaveCopied:
    """All workers have copied their parts of a save; ``digests`` are those of their states."""

    ticket: SaveTicket
    digests: frozenset[str]
    was_durable: bool | None = None
    """What another writer has answered, if one has."""

    def refuse_different_states(self) -> None:
        """Raise ``CommitRefused`` unless all parts are of the same state."""
        if len(self.digests) > 1:
            raise CommitRefused(
                f"the workers' states differ after step {self.ticket.step}, so it is not saved; "
                "look at the machine's memory"
            )


@dataclass(frozen=True, slots=True)
class Settle:
    """No worker of the launch lives on any host: write what is complete in memory."""

    is_urgent: bool


@dataclass(frozen=True, slots=True)
class SaveAnswered:
    """A save is durable, or will not be; an expected failure is none that a user should know."""

    ticket: SaveTicket
    is_durable: bool
    reason: str = ""
    is_expected: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """All that was complete in the host's memory is written, or given up."""

    step: int | None
    """The newest step in it that is durable."""


@dataclass(frozen=True, slots=True)
class DiskMoved:
    """The disk does not hang, and so many bytes are being written."""

    nbytes: int


OfWorker: TypeAlias = AskMemory | PlanSaves | PartCopied
ToWriter: TypeAlias = UseMemory | PlanSaves | SaveCopied | Settle
OfWriter: TypeAlias = SaveAnswered | Settled | DiskMoved | Notice | Records
