"""What the script of a run has read and done outside of its trainings: the first time counts.

Every worker runs the whole script, and so does each launch.  Some of it must be there once, such as
the time that a folder is named by.  The first process that comes to it writes a line, and all
others take what stands there.

Invariant: the first line of a key counts, for all processes and all launches, and of a number that
is *reached* the largest one.  A line is one write to a file that was opened with ``O_APPEND``, so
no lock is needed by the processes of one host.  Network file systems append where the host believes
that the file ends.  So processes of several hosts write a line in their turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.runtime.run.files import open_to_read, open_to_write
from holdfast.runtime.run.run_directory import Ownership

TRAININGS = "trainings"
"""The key of the number of trainings that the script has begun, if they are several."""


class ScriptRecord:
    """The record of one run, as one process of it sees it.

    Args:
        path: its file; made at the first need.
        is_of_hosts: whether processes of several hosts write it.
        owner: the job's claim to the run directory; another job's record gets no line.

    A file system that refuses makes it forget: each process goes on by itself then.
    """

    def __init__(
        self, path: Path, *, is_of_hosts: bool = False, owner: Ownership | None = None
    ) -> None:
        self._path = path
        self._owner = owner
        self._is_of_hosts = is_of_hosts
        self._known: dict[str, Any] = {}
        self._reached: dict[str, float] = {}
        self._read_bytes = 0
        self._has_turn = False

    def find(self, key: str) -> Any | None:
        """Return what stands in the record for a key, None if nothing does."""
        if key not in self._known:
            self._read_on()
        return self._known.get(key)

    def first(self, key: str, value: Any) -> Any:
        """Return what stands in the record for a key; ``value`` does now if nothing did."""
        found = self.find(key)
        if found is not None:
            return found
        self._add([key, value])
        self._read_on()
        return self._known.setdefault(key, value)

    def largest(self, key: str) -> float | None:
        """Return the largest number that was ``reached``, None if none was."""
        self._read_on()
        return self._reached.get(key)

    def reach(self, key: str, number: float) -> None:
        """Let the largest number of ``key`` be at least ``number``."""
        found = self._reached.get(key)
        if found is None or found < number:
            self._add([key, number, "reached"])
            self._reached[key] = number

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let one process of the run at a time do something; where no locks are, all do."""
        with contextlib.ExitStack() as held:
            if self._has_turn:  # a second lock of one process would wait for the first one
                yield
                return
            self._has_turn = True
            held.callback(setattr, self, "_has_turn", False)
            with contextlib.suppress(OSError):
                file = open_to_write(self._path)
                held.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _add(self, entry: list[Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self._owner is not None:
                self._owner.refuse_taken()
            self._append(line)

    def _append(self, line: bytes) -> None:
        with self.turn() if self._is_of_hosts else contextlib.nullcontext():
            file = open_to_write(self._path, os.O_APPEND)
            try:
                os.write(file, line)
            finally:
                os.close(file)

    def _read_on(self) -> None:
        """Read the lines that have come since; a line that is being written comes later."""
        with contextlib.suppress(OSError), open_to_read(self._path) as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(newline)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):  # torn when a process was killed
                    key, value, *kind = json.loads(line)
                    if kind:
                        self._reached[key] = max(value, self._reached.get(key, value))
                    else:
                        self._known.setdefault(key, value)
