"""A save on its way from this worker to the committer."""

from __future__ import annotations

from typing import Protocol

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.tensor import Tensors


class SnapshotNotWritten(CheckpointError):
    """The host's writer has failed; the journal holds its reason."""


FREE_WITHIN_S = 60.0
"""So long a save waits for its memory; a disk that is slower costs it, and the next one waits."""


class MemoryInUse(CheckpointError):
    """The memory for a save is still read for an earlier one, and must not change."""

    def __init__(self) -> None:
        super().__init__(
            f"its memory is still being written to the disk after {FREE_WITHIN_S:.0f} s, for an "
            "earlier save; look at the disk of the run directory"
        )


class PendingSave(Protocol):
    """One worker's part of a save, after its copy."""

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Take the digests of the part; another thread calls this once.

        ``state`` is still the state that was copied.
        """

    def compared(self) -> None:
        """Go on: all workers have the same state; ``state`` is still as it was."""

    @property
    def is_done(self) -> bool:
        """Whether the save is durable, or has failed."""

    @property
    def failure(self) -> BaseException | None:
        """The error if it has failed, else None."""

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until it is done."""


class NothingToSave:
    """The part of a worker that copies nothing, since another one saves the whole state."""

    is_done = True
    failure: BaseException | None = None

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Do nothing."""

    def compared(self) -> None:
        """Do nothing."""

    def wait(self, timeout_s: float) -> None:
        """Do not wait."""


class FailedSave(NothingToSave):
    """The part of a worker that could not copy anything."""

    def __init__(self, error: BaseException) -> None:
        self.failure = error
