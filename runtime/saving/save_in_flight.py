"""The checkpoint in flight, as one worker sees it, and how long it may take.

A file system that hangs answers nothing, not even an error.  A save that waited for it
would stay in flight for ever: training would go on without another checkpoint, and the end
of the job would never come.  So a save that takes far too long has failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.errors import CheckpointError
from holdfast.recovery.vote import Bit, SavePhase
from holdfast.runtime.saving.pending_save import PendingSave
from holdfast.runtime.system.witnessed_time import witnessed_s

ANSWERS_WITHIN_S = 180.0
SLOWEST_BYTES_PER_S = 10e6
_PASSES = 2
"""A save is written; a step that is there already is read before it is replaced."""


class SaveOverdue(CheckpointError):
    """A save takes so long that its file system must hang."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"it is not durable after {seconds:.0f} s, so its file system hangs; "
            "look at the disk or its server"
        )


@dataclass(slots=True)
class SaveInFlight:
    """A save from its beginning to its commit or failure."""

    step: int
    version: int
    """That of the cursor: what was saved is here as long as no transaction follows."""
    nbytes: int
    mine: PendingSave
    began: float
    """When its copy was whole, in seconds that this process has witnessed."""
    phase: SavePhase = SavePhase.WRITING
    goes_through: bool = False
    is_compared: bool = False
    """Whether all workers were found to have the same state."""

    @property
    def failure(self) -> BaseException | None:
        """The error of the save as far as this worker knows, None if there is none."""
        return self.mine.failure or self._overdue()

    @property
    def bits(self) -> Bit:
        """What this worker says of the save in a vote."""
        # Read before the failure: once a save is done, its failure is final.
        is_done = self.mine.is_done
        if self.failure is not None:
            return Bit.SETTLED
        return Bit.SETTLED | Bit.INTACT if is_done else Bit.INTACT

    def _overdue(self) -> SaveOverdue | None:
        seconds = witnessed_s() - self.began
        if seconds <= ANSWERS_WITHIN_S + _PASSES * self.nbytes / SLOWEST_BYTES_PER_S:
            return None
        return SaveOverdue(seconds)
