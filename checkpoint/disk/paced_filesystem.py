"""A file system whose reads keep to a rate, for work that nobody waits for.

A read-back or a scrub of a large step at full speed takes the disk, or the server of all
jobs, from saves and restores.  So each read is followed by a pause, until the bytes so far
have taken their time.  A pause is short, so the reader can be told to end between two.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoint.disk.filesystem import LocalFileSystem

BYTES_PER_S = 200e6
"""A tenth of a fast local disk; a slow one is slower by itself."""
_LONGEST_PAUSE_S = 1.0


class PacedFileSystem(LocalFileSystem):
    """The local file system, read at ``bytes_per_s`` at most on average.

    ``pause`` waits for the given seconds; ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        root: Path,
        bytes_per_s: float = BYTES_PER_S,
        *,
        fence: Callable[[], None] | None = None,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(root, *(() if fence is None else (fence,)))
        self._bytes_per_s = bytes_per_s
        self._pause = pause
        self._clock = clock
        self._free_at = 0.0
        self._is_over = False

    def end(self) -> None:
        """Let every read fail from now on, as one that may succeed later."""
        self._is_over = True

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``, then pause; return how many bytes came."""
        if self._is_over:
            raise OSError(errno.EAGAIN, "the reading was ended")
        began = self._clock()
        count = super().read(handle, buffer, offset)
        self._free_at = max(self._free_at, began) + count / self._bytes_per_s
        while not self._is_over and (seconds := self._free_at - self._clock()) > 0:
            self._pause(min(seconds, _LONGEST_PAUSE_S))
        return count
