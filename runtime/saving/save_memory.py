"""The memory that the workers of a host copy their saves into; the agent owns it.

So it outlives the workers, and the writer too.  There are two buffers: one is filled while the
other is written.  As long as saves succeed, all are copied into the same one, and the other one has
no pages.  Linux gives out memory that it does not have, and ends a process when it is used.
So the buffers are counted against the limits of the host before they are made.  There are fewer of
them, or none, where they do not fit.  A worker maps them (`HostBuffers`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.runtime.run.progress import memory
from holdfast.runtime.saving.save_messages import AskMemory
from holdfast.runtime.system.own_process import Usage, sealed_memory

BUFFERS = 2

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14

_AT_ONCE_BYTES = 32 * 2**20
"""This takes 13 ms and holds the interpreter's lock, which heartbeats need."""

_THEN = (
    "training waits while the first worker writes a checkpoint from its own memory",
    "one save waits for the end of the one before",
)
"""What follows from this many buffers."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one layout in one launch; ``lack`` says why there are not two."""

    launch: int
    layout: str
    fds: tuple[int, ...]
    lack: str = ""

    def close(self) -> None:
        """Close the descriptors; processes that have mapped the memory keep it."""
        for fd in self.fds:
            os.close(fd)


class SaveMemory:
    """Makes buffers when the first worker asks, and gives the same ones to the others."""

    def __init__(self, limits: Callable[[], Iterable[Usage]]) -> None:
        self._limits = limits
        self._current: Buffers | None = None
        self._before: Buffers | None = None

    def buffers(self, launch: int, question: AskMemory) -> tuple[Buffers, bool]:
        """Return the buffers for a worker's question, and whether they are new."""
        found = self._current
        if found is not None and (found.launch, found.layout) == (launch, question.layout):
            return found, False
        if self._before is not None:
            self._before.close()
        self._before = found  # its descriptors may still be on their way to a worker
        self._current = self._make(launch, question)
        return self._current, True

    def close(self) -> None:
        """Close all descriptors."""
        for found in (self._before, self._current):
            if found is not None:
                found.close()
        self._before = self._current = None

    def _make(self, launch: int, question: AskMemory) -> Buffers:
        count, lack = self._count(question.nbytes, question.most)
        fds: list[int] = []
        try:
            while len(fds) < count:
                fds.append(sealed_memory("holdfast-save", question.size))
        except OSError as error:  # no descriptor is left
            lack = f"memory for snapshots cannot be made: {error}; {_THEN[len(fds)]}"
        return Buffers(launch, question.layout, tuple(fds), lack)

    def _count(self, nbytes: int, most: int | None) -> tuple[int, str]:
        """Return how many buffers fit, and why there are not two."""
        tightest = min(self._limits(), key=lambda usage: usage.free, default=None)
        count, left = BUFFERS, ""
        if tightest is not None and BUFFERS * nbytes > tightest.free:
            count = 1 if nbytes <= tightest.free else 0
            left = f"{tightest.place} has {memory(tightest.free)} left"
        if most is not None and most < BUFFERS * nbytes:
            count = min(most // max(nbytes, 1), count)
            left = f"--snapshot-memory allows {memory(most)}"
        if not left:
            return count, ""
        return count, f"two snapshots of {memory(nbytes)} do not fit: {left}; {_THEN[count]}"


class HostBuffers:
    """Buffers of one size; every part of a save is copied into the same one."""

    def __init__(self, maps: Sequence[mmap.mmap]) -> None:
        self._maps = maps
        self._views = [memoryview(found) for found in maps]

    @staticmethod
    def of_agent(fds: Iterable[int]) -> HostBuffers:
        """Map the agent's buffers, and close their descriptors.

        Raises ``OSError`` if they cannot be mapped.
        """
        owned = list(fds)
        try:
            return HostBuffers([mmap.mmap(fd, 0) for fd in owned])
        finally:
            for fd in owned:
                os.close(fd)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, buffer: int) -> memoryview:
        return self._views[buffer]

    def place_of(self, attempt: int) -> int:
        """Return the number of the buffer that a save is copied into."""
        return attempt % len(self._views)

    def touch(self, attempt: int, spans: Iterable[tuple[int, int]]) -> None:
        """Map the pages of a save's places now, so that its copy meets no page faults.

        Raises ``OSError`` if the system has no memory for them.
        """
        if not self._maps:
            return
        found = self._maps[self.place_of(attempt)]
        for start, length in _joined(spans):
            for place, size in _in_pieces(start, length):
                _touch(found, place, size)

    def keep_only(self, attempt: int) -> None:
        """Return the pages of all buffers but that of a save to the system, where it takes them."""
        for number, found in enumerate(self._maps):
            if number != self.place_of(attempt):
                with contextlib.suppress(OSError):
                    for place, size in _in_pieces(0, len(found)):
                        found.madvise(mmap.MADV_REMOVE, place, size)

    def close(self) -> None:
        """Unmap; memory of the agent stays."""
        for view in self._views:
            view.release()
        for found in self._maps:
            found.close()


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pages of ascending spans as few stretches: start and length."""
    joined: list[tuple[int, int]] = []
    for start, length in sorted(spans):
        low = start // mmap.PAGESIZE * mmap.PAGESIZE
        high = -(-(start + length) // mmap.PAGESIZE) * mmap.PAGESIZE
        if joined and low <= sum(joined[-1]):
            first, before = joined[-1]
            joined[-1] = (first, max(before, high - first))
        else:
            joined.append((low, high - low))
    return joined


def _in_pieces(start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of memory that one call may take: start and length."""
    for place in range(start, start + length, _AT_ONCE_BYTES):
        yield place, min(_AT_ONCE_BYTES, start + length - place)


def _touch(found: mmap.mmap, start: int, length: int) -> None:
    length = min(length, len(found) - start)
    try:
        found.madvise(_POPULATE_WRITE, start, length)
    except OSError as error:
        if error.errno != 22:  # EINVAL: an older kernel
            raise
        for place in range(start, start + length, mmap.PAGESIZE):
            found[place] = found[place]
