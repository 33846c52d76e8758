"""The checkpoint in flight, as one worker sees it, and how long it may take.

A file system that hangs answers nothing, not even an error.  A save that waited for it
would stay in flight for ever: training would go on without another checkpoint, and the end
of the job would never come.  So a save that takes far too long has failed.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store.store import Staging
from holdfast.recovery.vote import Bit, SavePhase
from holdfast.runtime.saving.shard_writers import PendingShard
from holdfast.runtime.saving.snapshot import SavePlan

ANSWERS_WITHIN_S = 180.0
SLOWEST_BYTES_PER_S = 10e6
_PASSES = 4
"""A shard is written and read; the new checkpoint may be read back, and one that is pruned."""


class SaveOverdue(CheckpointError):
    """A save takes so long that its file system must hang."""

    def __init__(self, seconds: float, phase: SavePhase) -> None:
        super().__init__(
            f"it is still {phase.value} after {seconds:.0f} s, so its file system hangs; "
            "look at the disk or its server"
        )


@dataclass(slots=True)
class SaveInFlight:
    """A save from its beginning to its commit or failure."""

    plan: SavePlan
    staging: Staging
    mine: PendingShard
    began: float
    phase: SavePhase = SavePhase.WRITING
    commit: Future[int] | None = None

    @property
    def step(self) -> int:
        """The step whose state is saved."""
        return self.plan.header.step

    @property
    def failure(self) -> BaseException | None:
        """The error of the save on this worker, None if there is none."""
        if self.mine.failure is not None:
            return self.mine.failure
        if self.commit is not None and self.commit.done():
            return self.commit.exception()
        return self._overdue()

    @property
    def bits(self) -> Bit:
        """What this worker says of the save in a vote."""
        # Read before the failure: once a shard is done, its failure is final.
        has_settled = self.commit is None or self.commit.done()
        is_done = self.mine.is_done
        bits = Bit(0) if self.failure is not None else Bit.INTACT
        if is_done:
            bits |= Bit.DURABLE
        if has_settled:
            bits |= Bit.SETTLED
        return bits

    def _overdue(self) -> SaveOverdue | None:
        nbytes = self.plan.layout.nbytes
        seconds = time.monotonic() - self.began
        if seconds <= ANSWERS_WITHIN_S + _PASSES * nbytes / SLOWEST_BYTES_PER_S:
            return None
        return SaveOverdue(seconds, self.phase)
