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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import close, open_to_read
from holdfast.runtime.run.run_directory import Ownership, RunDirectory

FILE_BYTES = 8 << 20
"""Some 100,000 lines; a worker has two such files."""

_ALL = "all"
_NAME = re.compile(r"worker-(\d+)\.log(?:\.1)?")
_MOST_FILES = 1000
"""Each relaunch has new workers."""
_MOST_OPEN = 64


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
        self._owner = owner
        self._warn = warn
        self._file_bytes = file_bytes
        self._files: dict[str, int] = {}
        self._lost: Counter[str] = Counter()
        """The lines that a file has not taken, and does not count yet."""
        self._torn: set[str] = set()
        self._has_warned = False

    def write(self, worker: int | None, host: str, lines: bytes, lost: int) -> None:
        """Append whole lines of a worker, after which so many are missing; None is holdfast."""
        if worker is None:
            self._append(_ALL, lines, lost)
            return
        name = f"worker-{worker}"
        prefix = f"[w{worker} {host}] " if host else f"[w{worker}] "
        self._append(name, lines, lost)
        self._append(_ALL, re.sub(rb"(?m)^(?=.|\n)", prefix.encode(), lines), lost)

    def close(self) -> None:
        """Close all files."""
        while self._files:
            close(self._files.popitem()[1])

    def _append(self, name: str, lines: bytes, lost: int) -> None:
        missing = self._lost[name]
        begin = b"\n" if name in self._torn else b""
        content = begin + _gap(missing) + lines + _gap(lost)
        try:
            written = os.write(self._file_for(name, len(content)), content)
        except OSError as error:
            self._lose(name, lines.count(b"\n") + lost, str(error))
            return
        self._lost[name] = 0
        self._torn.discard(name)
        if written < len(content):
            self._torn.add(name)
            rest = content[written:].count(b"\n")
            self._lose(name, rest, "the file system took a part, as a full one does")

    def _lose(self, name: str, lines: int, reason: str) -> None:
        self._lost[name] += lines
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"the logs in {self._folder} have gaps: {reason}")

    def _file_for(self, name: str, size: int) -> int:
        """Return the descriptor of a file that has room; one that was removed is made again."""
        path = self._folder / f"{name}.log"
        fd = self._files.get(name)
        if fd is None or not os.fstat(fd).st_nlink:
            fd = self._open(name, path)
        found = os.fstat(fd).st_size
        if found and found + size > self._file_bytes:
            self._owner.refuse_taken()
            os.replace(path, path.with_name(f"{path.name}.1"))
            fd = self._open(name, path)
        return fd

    def _open(self, name: str, path: Path) -> int:
        fd = self._owner.open_to_append(path)
        self._thin_out()
        before = self._files.pop(name, None)
        if before is not None:
            close(before)
        if len(self._files) >= _MOST_OPEN:
            self.close()
        self._files[name] = fd
        return fd

    def _thin_out(self) -> None:
        """Remove the files of the oldest workers, if there are too many."""
        paths = sorted(filter(_NAME.fullmatch, os.listdir(self._folder)), key=_worker_of)
        for name in paths[: max(0, len(paths) - _MOST_FILES)]:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()


def _gap(lines: int) -> bytes:
    if not lines:
        return b""
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
