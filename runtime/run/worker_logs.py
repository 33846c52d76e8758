"""What the workers of a run print, in files of bounded size.

``worker-2.log`` has the lines of worker 2 and nothing else.  ``all.log`` has the lines of all in
the order in which they came to the head, each behind its worker, and those of holdfast itself.
A file that is full becomes ``worker-2.log.1``, and the one that had this name is gone.  A job that
goes on with a run goes on with its files.

The logs are for people.  Nothing waits for them.  Lines that cannot be written are lost, and the
file says how many are missing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import open_to_read
from holdfast.runtime.run.journal import AppendedFile
from holdfast.runtime.run.run_directory import Ownership, RunDirectory

FILE_BYTES = 8 << 20
"""Some 100,000 lines; a worker has two such files."""

_ALL = "all"
_NAME = re.compile(r"worker-(\d+)\.log(?:\.1)?")
_MOST_FILES = 1000
"""Each relaunch has new workers."""
_MOST_OPEN = 64


@dataclass(frozen=True, slots=True)
class LogText:
    """Lines of a worker, or of holdfast itself, as Latin-1; after them so many are lost."""

    worker: WorkerId | None
    host: str
    lines: str
    lost: int = 0


class _LogFile(AppendedFile):
    """One file; when it is full, it becomes the older one of two."""

    def __init__(self, path: Path, owner: Ownership, file_bytes: int) -> None:
        super().__init__(path, owner, gap)
        self._file_bytes = file_bytes

    def _make_room(self, nbytes: int) -> None:
        size = os.fstat(self._fd).st_size
        if size and size + nbytes > self._file_bytes:
            self._owner.refuse_taken()
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            self.open()


class WorkerLogs:
    """The files, as their writer has them; its methods may hang with their disk."""

    def __init__(
        self,
        folder: Path,
        owner: Ownership,
        warn: Callable[[str], None],
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._folder = folder
        self._warn = warn
        self._new: Callable[[Path], _LogFile] = lambda path: _LogFile(path, owner, file_bytes)
        self._files: dict[str, _LogFile] = {}
        self._has_warned = False

    def write(self, text: LogText) -> None:
        """Append whole lines."""
        worker, host, lines = text.worker, text.host, text.lines.encode("latin-1")
        if worker is None:
            self._append(_ALL, lines, text.lost)
            return
        prefix = f"[w{worker} {host}] " if host else f"[w{worker}] "
        self._append(f"worker-{worker}", lines, text.lost)
        self._append(_ALL, re.sub(rb"(?m)^(?=.|\n)", prefix.encode(), lines), text.lost)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()

    def _append(self, name: str, lines: bytes, lost: int) -> None:
        if name not in self._files:
            self._files[name] = self._new(self._folder / f"{name}.log")
        file = self._files[name]
        was_open = file.is_open
        if not was_open and sum(one.is_open for one in self._files.values()) >= _MOST_OPEN:
            self.close()
        reason = file.append(lines, lost)
        if file.is_open and not was_open:
            self._thin_out()
        if reason and not self._has_warned:
            self._has_warned = True
            self._warn(f"the logs in {self._folder} have gaps: {reason}")

    def _thin_out(self) -> None:
        """Remove the files of the oldest workers, if there are too many."""
        with contextlib.suppress(OSError):
            paths = sorted(filter(_NAME.fullmatch, os.listdir(self._folder)), key=_worker_of)
            for name in paths[: max(0, len(paths) - _MOST_FILES)]:
                (self._folder / name).unlink()


def gap(lines: int) -> bytes:
    """Return the line that stands for those that are missing."""
    return f"holdfast: {lines} {'line is' if lines == 1 else 'lines are'} missing here\n".encode()


def _worker_of(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else -1


class LogReader:
    """Reads the lines of a worker, or of all, from the oldest one; then what has come since."""

    def __init__(self, directory: RunDirectory, worker: int | None = None) -> None:
        """Find the files.

        Raises:
            UsageError: there are none.
        """
        name = _ALL if worker is None else f"worker-{worker}"
        self._path = directory.logs_path / f"{name}.log"
        self._file: int | None = None
        if self._path.exists():
            return
        found = set()
        with contextlib.suppress(OSError):
            found = {_worker_of(name) for name in os.listdir(directory.logs_path)} - {-1}
        if found:
            these = ", ".join(map(str, sorted(found)))
            raise UsageError(
                f"worker {worker} has printed nothing in {directory.path}; these have: {these}"
            )
        raise UsageError(f"no worker has printed anything in {directory.path} yet")

    def read(self) -> Iterator[bytes]:
        """Yield pieces of what is there and was not read, the oldest first.

        Raises:
            UsageError: a file cannot be read.
        """
        try:
            if self._file is None:
                with contextlib.suppress(FileNotFoundError):
                    yield from self._pieces(self._opened(f"{self._path.name}.1"))
                self._file = self._opened(self._path.name)
            yield from self._pieces(self._file)
            while self._is_full():  # another file has its name by now
                yield from self._pieces(self._file)
                os.close(self._file)
                self._file = self._opened(self._path.name)
                yield from self._pieces(self._file)
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error.strerror or error}") from error

    def _opened(self, name: str) -> int:
        with open_to_read(self._path.with_name(name)) as file:
            return os.dup(file.fileno())

    def _is_full(self) -> bool:
        assert self._file is not None
        with contextlib.suppress(FileNotFoundError):
            return not os.path.samestat(os.fstat(self._file), self._path.stat())
        return False

    @staticmethod
    def _pieces(fd: int) -> Iterator[bytes]:
        while piece := os.read(fd, 1 << 16):
            yield piece
