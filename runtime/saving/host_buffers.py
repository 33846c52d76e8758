"""The buffers of this host, as a worker has mapped them: the agent's, or its own."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14
_AT_ONCE_BYTES = 32 * 2**20
"""This takes 13 ms and holds the interpreter's lock, which heartbeats need."""


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

    @staticmethod
    def own(count: int, size: int) -> HostBuffers:
        """Return buffers in this process's own memory, which takes none before it is written."""
        return HostBuffers([mmap.mmap(-1, size) for _ in range(count)])

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, buffer: int) -> memoryview:
        return self._views[buffer]

    def touch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Map the pages of these places now, so that a copy meets no page faults.

        Raises ``OSError`` if the system has no memory for them.
        """
        for start, length in _joined(spans):
            for found in self._maps:
                for place in range(start, start + length, _AT_ONCE_BYTES):
                    _touch(found, place, min(_AT_ONCE_BYTES, start + length - place))

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


def _touch(found: mmap.mmap, start: int, length: int) -> None:
    length = min(length, len(found) - start)
    try:
        found.madvise(_POPULATE_WRITE, start, length)
    except OSError as error:
        if error.errno != 22:  # EINVAL: an older kernel
            raise
        for place in range(start, start + length, mmap.PAGESIZE):
            found[place] = found[place]
