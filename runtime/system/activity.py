"""What the thread that trains does from moment to moment, as sums of time.

A worker is in one `Activity` at a time.  Each change adds the time of the last one to a sum in its
status, which costs less than a microsecond and is always done.  The worker makes no call for it,
and waits for nobody.
"""

from __future__ import annotations

from enum import IntEnum
from time import monotonic_ns


class Activity(IntEnum):
    """What the thread that trains is doing; at most 16 kinds."""

    SCRIPT = 0
    """The script's own lines, before, between and after its trainings."""
    JOIN = 1
    """Joins the world, in MPI and with its peers."""
    RESTORE = 2
    COMPILE = 3
    """The first step, which traces graphs, and what other shapes cost before they come."""
    READ = 4
    """Reads samples, or waits until the worker that reads a pipeline for all has a batch."""
    COMPUTE = 5
    WAIT = 6
    """Waits until the peers have computed, too."""
    EXCHANGE = 7
    """Sums; between hosts also what is sent and awaited."""
    VOTE = 8
    APPLY = 9
    CALLBACKS = 10
    COPY = 11
    """Copies the state for a save."""
    REPAIR = 12
    FINISH = 13
    """Waits for the last checkpoints."""

    @property
    def label(self) -> str:
        """The name that people read."""
        return self.name.lower()


WAITING = frozenset({Activity.WAIT, Activity.EXCHANGE})
"""A slow worker has little of these: its peers wait in them.

A vote is none of them: workers come to it together, and it takes each one the same time.
"""

_COMPUTE, _COMPILE = Activity.COMPUTE.value, Activity.COMPILE.value
KINDS = 16


class ActivityTimes:
    """Adds up the time of each activity, in the worker.

    Each step enters a dozen activities, so ``enter`` looks up as little as it can.

    Args:
        words: the status of the worker.
        sums_at: the place of `KINDS` sums in it, in nanoseconds.
        phase_at: the place of the phase.
        compiling: the phase in which computing is compiling.
    """

    def __init__(self, words: memoryview, *, sums_at: int, phase_at: int, compiling: int) -> None:
        self._words = words
        self._sums_at = sums_at
        self._phase_at = phase_at
        self._compiling = compiling
        self._at: int | None = None
        """The place of the sum of the activity in hand."""
        self._since = 0

    def enter(self, activity: int) -> None:
        """Note what the thread that trains does from now on; no other thread calls.

        The first step of a launch computes for as long as it traces graphs.
        """
        words = self._words
        if activity == _COMPUTE and words[self._phase_at] == self._compiling:
            activity = _COMPILE
        at, before = self._sums_at + activity, self._at
        if at == before:
            return
        now = monotonic_ns()
        if before is not None:
            words[before] += now - self._since
        self._at, self._since = at, now
