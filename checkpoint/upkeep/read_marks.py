"""Which committed steps this process has read back, when, and which it found damaged.

Marks are kept in memory only: a mark on the disk would outlive the disk's sound state.
"""

from __future__ import annotations

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.store.store import CheckpointStore


class ReadMarks:
    """When each step was last read back with all of its digests right, and which were damaged."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._damaged: set[int] = set()
        self._unread: set[int] = set()

    def __contains__(self, step: int) -> bool:
        return step in self._times

    def time_of(self, step: int) -> float | None:
        """Return when ``step`` was read back, None if it was not."""
        return self._times.get(step)

    def mark(self, step: int, now: float) -> None:
        """Remember that ``step`` was read back at ``now``."""
        self.forget(step)
        self._times[step] = now

    def is_damaged(self, step: int) -> bool:
        """Return whether ``step`` did not verify when it was last read back."""
        return step in self._damaged

    def is_unread(self, step: int) -> bool:
        """Return whether the last reading of ``step`` failed without telling if it is whole."""
        return step in self._unread

    def mark_damaged(self, step: int) -> None:
        """Remember that ``step`` does not verify."""
        self.forget(step)
        self._damaged.add(step)

    def forget(self, step: int) -> None:
        """Forget all marks of a step, for example because it was saved again."""
        self._damaged.discard(step)
        self._unread.discard(step)
        self._times.pop(step, None)

    def verify(self, store: CheckpointStore, step: int, now: float) -> str | None:
        """Read ``step`` and remember it; returns why it does not verify, None if it does."""
        try:
            read_back(store, step)
        except CheckpointUnreadable as error:  # it may verify the next time
            self.forget(step)
            self._unread.add(step)
            return error.reason
        except CheckpointInvalid as error:
            self.mark_damaged(step)
            return error.reason
        self.mark(step, now)
        return None


def read_back(store: CheckpointStore, step: int) -> None:
    """Read every byte of ``step`` and compare all digests.

    Raises ``CheckpointInvalid`` if it does not verify, ``CheckpointUnreadable`` if the
    read failed and the next one may succeed.
    """
    store.scan(step).verify()
