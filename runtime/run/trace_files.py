"""The trace of a run: what each worker did when, in files of bounded size.

A line is a `TracePiece`: the words of one worker's ring since its last piece
(`system.timeline`), as they are.  So nobody takes them apart while the job runs.  When a file
is full, the next one follows.  The first file stays, and the newest ones: the begin of a run,
and its last hours.  A job that goes on with a run goes on with its trace.

The trace is for people.  Nothing waits for it, and a line that cannot be written is lost.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import close, open_to_read, open_to_write
from holdfast.runtime.run.run_directory import Ownership
from holdfast.runtime.system.codec import WrongValue, decode
from holdfast.runtime.system.timeline import Change, changes_in

_FILE_BYTES = 8 << 20
"""About 700,000 spans."""

_NEWEST = 3
_SUFFIX = ".jsonl"
_NONE = -1


@dataclass(frozen=True, slots=True)
class TracePiece:
    """What one worker did since its last piece.

    Attributes:
        host: the name of its host, empty if the job has one.
        step: one that it had come to when the words were read, at ``clock_s`` of its host.
        lost: how many words the ring has lost before these.
        is_last: whether the worker has ended by then.
        offset_s: how far the time since 1970 is ahead of that clock.
    """

    host: str
    worker: int
    generation: int
    step: int
    words: str
    lost: int
    clock_s: float
    is_last: bool
    offset_s: float

    @property
    def changes(self) -> Iterator[Change]:
        """The changes of activity in it."""
        return changes_in(base64.b64decode(self.words), self.step)


class TraceFiles:
    """The files, as their writer has them; its methods may hang with their disk."""

    def __init__(
        self,
        folder: Path,
        owner: Ownership,
        warn: Callable[[str], None],
        file_bytes: int = _FILE_BYTES,
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._warn = warn
        self._file_bytes = file_bytes
        self._fd = _NONE
        self._has_warned = False

    def write(self, line: str) -> None:
        """Append a line, or lose it."""
        piece = b"\n" + line.encode()  # after a line that was torn
        try:
            if self._fd == _NONE:
                self._open(max(_numbers(self._folder), default=1))
            if os.fstat(self._fd).st_size + len(piece) > self._file_bytes:
                self._open(max(_numbers(self._folder), default=0) + 1)
                self._thin_out()
            os.write(self._fd, piece)
        except OSError as error:
            self.close()
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"the trace in {self._folder} has gaps: {error}")

    def close(self) -> None:
        """Close the file in hand."""
        if self._fd != _NONE:
            close(self._fd)
            self._fd = _NONE

    def _open(self, number: int) -> None:
        self._owner.refuse_taken()
        self._folder.mkdir(exist_ok=True)
        fd = open_to_write(self._folder / f"{number:06}{_SUFFIX}", os.O_APPEND)
        self.close()
        self._fd = fd

    def _thin_out(self) -> None:
        """Remove files of the middle, if there are too many."""
        for number in sorted(_numbers(self._folder))[1:-_NEWEST]:
            with contextlib.suppress(OSError):
                (self._folder / f"{number:06}{_SUFFIX}").unlink()


def _numbers(folder: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        names = (Path(name) for name in os.listdir(folder))
        return [int(n.stem) for n in names if n.suffix == _SUFFIX and n.stem.isdecimal()]
    return []


def read_trace(folder: Path) -> Iterator[TracePiece]:
    """Yield the pieces of a trace, those of a worker in their order; torn lines are skipped.

    Raises:
        UsageError: there is no trace, or it cannot be read.
    """
    try:
        numbers = sorted(_numbers(folder))
        if not numbers:
            raise UsageError(f"{folder.parent} has no trace: run the job with --trace")
        for number in numbers:
            with open_to_read(folder / f"{number:06}{_SUFFIX}") as file:
                for line in file:
                    with contextlib.suppress(WrongValue, ValueError):
                        yield decode(TracePiece, line)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from error
