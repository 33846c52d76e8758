"""What the thread that trains does from moment to moment: sums for all, and spans for a trace.

A worker is in one `Activity` at a time.  Each change adds the time of the last one to a sum in its
status, which costs less than a microsecond and is always done.  If the job is traced, the change is
one more word in a ring behind the status: the moment, the step and the activity.  A span ends
where the next one begins, so two never overlap.

The worker makes no call for it, and waits for nobody.  The agent of its host reads the ring, also
when the worker is dead: the memory outlives it.  A word is written as a whole, and counted after
that.  What the ring has lost, because nobody has read it in time, is counted too.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
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
RING_WORDS = 1 << 15
"""Ten thousand changes a second last for three seconds; they are read twice a second."""

RING_BYTES = mmap.PAGESIZE + 8 * RING_WORDS
"""The number of words so far, alone in its page, and the words."""

_STEP_BITS, _KIND_BITS = 12, 4
_MOMENT_AT = _STEP_BITS + _KIND_BITS
_STEP_MASK, _KIND_MASK = (1 << _STEP_BITS) - 1, (1 << _KIND_BITS) - 1
_MOMENT_MASK = (1 << 64 - _MOMENT_AT) - 1
"""Nine years."""


@dataclass(frozen=True, slots=True)
class Change:
    """The begin of a span, in microseconds of the monotonic clock of its host."""

    at_us: int
    step: int
    """The step in hand, from 1."""
    activity: Activity


class Timeline:
    """The writer's side, in the worker.

    Each step enters a dozen activities, so ``enter`` looks up as little as it can.

    Args:
        words: the status of the worker.
        sums_at: the place of `KINDS` sums in it, in nanoseconds.
        step_at, phase_at: the places of the step and of the phase.
        compiling: the phase in which computing is compiling.
    """

    def __init__(
        self, words: memoryview, *, sums_at: int, step_at: int, phase_at: int, compiling: int
    ) -> None:
        self._words = words
        self._sums_at = sums_at
        self._step_at = step_at
        self._phase_at = phase_at
        self._compiling = compiling
        self._ring: memoryview | None = None
        self._count = 0
        self._at: int | None = None
        """The place of the sum of the activity in hand."""
        self._since = 0

    def trace(self, fd: int, offset: int) -> None:
        """Write each change into the ring at ``offset`` of a memory, too."""
        ring = mmap.mmap(fd, RING_BYTES, offset=offset)
        self._ring = memoryview(ring).cast("Q")

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
        ring = self._ring
        if ring is not None:
            step = (words[self._step_at] + 1 & _STEP_MASK) << _KIND_BITS
            moment = (now // 1000 & _MOMENT_MASK) << _MOMENT_AT
            ring[_FIRST + self._count % RING_WORDS] = moment | step | activity
            self._count += 1
            ring[0] = self._count


_FIRST = mmap.PAGESIZE // 8


class RingReader:
    """The reader's side, in the agent of the worker's host."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd = fd
        self._offset = offset
        self._read = 0

    def drain(self) -> tuple[bytes, int]:
        """Return the words since the last call, oldest first, and how many were lost before."""
        count = self._count
        if count == self._read:
            return b"", 0
        first = max(self._read, count - RING_WORDS)
        at, end = first % RING_WORDS, (count - 1) % RING_WORDS + 1
        pieces = ((at, end),) if at < end else ((at, RING_WORDS), (0, end))
        words = b"".join(self._words(*piece) for piece in pieces)
        # The worker may have come round meanwhile, and be writing one word that it has not counted.
        whole = max(first, self._count + 1 - RING_WORDS)
        lost, self._read = min(whole, count) - self._read, count
        return words[8 * (min(whole, count) - first) :], lost

    @property
    def _count(self) -> int:
        return int.from_bytes(os.pread(self._fd, 8, self._offset), "little")

    def _words(self, begin: int, end: int) -> bytes:
        return os.pread(self._fd, 8 * (end - begin), self._offset + mmap.PAGESIZE + 8 * begin)


def changes_in(words: bytes, newest_step: int) -> Iterator[Change]:
    """Yield what words of a ring say; a word has the low bits of its step.

    ``newest_step`` is one that the worker had come to when the words were read.
    """
    for word in array("Q", words):
        step = newest_step - (newest_step - (word >> _KIND_BITS)) % (_STEP_MASK + 1)
        yield Change(word >> _MOMENT_AT, step, Activity(word & _KIND_MASK))
