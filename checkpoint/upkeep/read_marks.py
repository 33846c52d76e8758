"""Which committed steps this process has read back whole, and when.

Kept in memory only: a mark on the disk would speak of the disk as it was.
"""

from __future__ import annotations

from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.store.store import CheckpointStore


class ReadMarks:
    """When each step was last read back with all of its digests right."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}

    def __contains__(self, step: int) -> bool:
        return step in self._times

    def time_of(self, step: int) -> float | None:
        """Return when ``step`` was read back, None if it was not."""
        return self._times.get(step)

    def mark(self, step: int, now: float) -> None:
        """Remember that ``step`` was read back at ``now``."""
        self._times[step] = now

    def forget(self, step: int) -> None:
        """Forget a step: it was saved again, or found damaged."""
        self._times.pop(step, None)

    def verify(self, store: CheckpointStore, step: int, now: float) -> str | None:
        """Read ``step`` and remember it; returns why it does not verify, None if it does."""
        try:
            read_back(store, step)
        except CheckpointInvalid as error:
            self.forget(step)
            return error.reason
        self.mark(step, now)
        return None


def read_back(store: CheckpointStore, step: int) -> None:
    """Read every byte of ``step`` and compare all digests.

    Raises ``CheckpointInvalid`` if it does not verify, ``CheckpointUnreadable`` if
    that cannot be said just now.
    """
    store.scan(step).verify()
