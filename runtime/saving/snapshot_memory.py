"""Memory for a worker's snapshots, which its agent can hold on to when the worker is dead.

Two buffers take turns, so that a snapshot that is complete is whole until the next
one is complete as well.  Their pages are there before the first snapshot: touching
them then would make it ten times slower than the copy.
"""

from __future__ import annotations

import mmap
import os

from holdfast.runtime.system.sealed_memory import sealed_memory

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14
_AT_ONCE_BYTES = 32 * 2**20
"""13 ms: the interpreter's lock is held meanwhile, and a worker has to show that it lives."""


class SnapshotMemory:
    """Two buffers of one size in memory that has no name."""

    def __init__(self, size: int) -> None:
        """Take the memory now.

        Raises:
            OSError: there is not that much.
        """
        self.size = size
        self._buffers: list[_Buffer] = []
        self._turn = 0
        try:
            for _ in range(2):
                self._buffers.append(_Buffer(size))
        except BaseException:
            self.close()  # or half of what was too much stays taken
            raise

    def next(self) -> tuple[int, memoryview]:
        """Return descriptor and contents of the buffer that was used less recently."""
        self._turn = 1 - self._turn
        buffer = self._buffers[self._turn]
        return buffer.fd, buffer.contents

    def close(self) -> None:
        """Give the memory back; who has mapped it keeps it."""
        for buffer in self._buffers:
            buffer.close()


class _Buffer:
    """A memfd and our view of it."""

    def __init__(self, size: int) -> None:
        self.fd = sealed_memory("holdfast-snapshot", size)
        try:
            os.posix_fallocate(self.fd, 0, size)
            self._map = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise
        self.contents = memoryview(self._map)
        for start in range(0, size, _AT_ONCE_BYTES):
            self._touch(start, min(_AT_ONCE_BYTES, size - start))

    def _touch(self, start: int, size: int) -> None:
        """Have every page mapped."""
        try:
            self._map.madvise(_POPULATE_WRITE, start, size)
        except OSError:  # an older kernel
            for place in range(start, start + size, mmap.PAGESIZE):
                self.contents[place] = 0

    def close(self) -> None:
        """Unmap and close."""
        self.contents.release()
        self._map.close()
        os.close(self.fd)
