"""Memory that processes share and that has been touched, as snapshots lie in."""

from __future__ import annotations

import mmap
import os
from types import TracebackType


class SharedMemory:
    """An anonymous file in memory, mapped and filled once."""

    def __init__(self, size_bytes: int) -> None:
        self._handle = os.memfd_create("holdfast-bench")
        os.ftruncate(self._handle, size_bytes)
        self._map = mmap.mmap(self._handle, size_bytes)
        self.buffer = memoryview(self._map)
        for start in range(0, size_bytes, 2**20):
            part = self.buffer[start : start + 2**20]
            part[:] = b"\1" * len(part)
            part.release()

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.buffer.release()
        self._map.close()
        os.close(self._handle)
