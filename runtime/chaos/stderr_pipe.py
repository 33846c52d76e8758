"""The stderr of a job as a pipe, which can be full for a while.

A terminal that is held, or a pager that does not read, is a pipe that is full.  It is filled
with NUL bytes through a descriptor of its own that does not block, so the next write of
the job waits.  The NUL bytes are dropped when the pipe is read again.
"""

from __future__ import annotations

import os
from pathlib import Path

_PIECES = (4096, 1)
_READ_BYTES = 1 << 16


class StderrPipe:
    """The pipe, and the file that its text goes to."""

    def __init__(self, text_path: Path) -> None:
        """Make a pipe; text is appended to ``text_path``."""
        self._text_path = text_path
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_held = False

    def started(self) -> None:
        """Close this process's copy of the end that a child has inherited."""
        os.close(self.write_fd)

    def fill(self) -> None:
        """Take the last free byte, and read nothing until ``release``."""
        self._is_held = True
        # Another open file description: the job's own stays one that blocks.
        descriptor = os.open(f"/proc/self/fd/{self._read_fd}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            for size in _PIECES:
                _write_all(descriptor, bytes(size))
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Read again."""
        self._is_held = False

    def drain(self) -> None:
        """Read what has come, without waiting."""
        while not self._is_held:
            try:
                text = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not text:
                return
            with self._text_path.open("ab") as file:
                file.write(text.replace(b"\0", b""))

    def close(self) -> None:
        """Read the rest, and close the pipe."""
        self.release()
        self.drain()
        os.close(self._read_fd)


def _write_all(descriptor: int, piece: bytes) -> None:
    """Write ``piece`` until there is no room."""
    while True:
        try:
            os.write(descriptor, piece)
        except BlockingIOError:
            return
