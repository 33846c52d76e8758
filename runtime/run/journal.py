"""The journal: every event of a job, one JSON object a line, append only.

Several processes write the same file at once.  The kernel keeps their lines whole: a file
opened with ``O_APPEND`` takes each ``write`` as one piece at its end (POSIX.1-2017,
``write``).  So each line is exactly one ``write``.  Six things can still go wrong, and
each has one answer:

* a process dies, or the machine loses power, within a line: the line is *torn*.
  A journal that is opened begins a new line after a torn one, and readers skip
  lines that do not parse;
* the file system is full, fails or is gone: training goes on without its journal.
  Lines are counted as lost, and one warning is logged.  The first line that can be
  written again is a ``journal_gap`` with the number of missing lines;
* a user removes the file, or the run directory: it is made again, and begins with a
  ``journal_removed``.  A network file system may show that as a descriptor that fails.
  Another run may have begun there meanwhile: its journal gets no line of this one;
* another user puts a link or another file in its place: that is refused, like a file that
  cannot be opened (`files`);
* the file system hangs: a thread of its own writes, and nobody waits for it for more than
  a second (`files.BoundedCalls`);
* two threads of a process write at once: that one thread writes the lines of both.

Nothing is fsynced: the journal is a history, and no job is restored from it.  It tells two things
to a job that begins.

The *generation* that comes next.  Generations name worlds and saves, and none is used again.  The
journal tells the newest one, but it may be lost, or its disk full.  So the store is asked as well:
names of unfinished saves hold the generation that made them, and so does the manifest of the newest
step.

The *history of failures*: how often the run has lost all of its workers.  A death that leaves
survivors does not send the run back to a checkpoint, so it does not count.  Each launch that was
lost and followed by another one counts.  So does each job without a record of its end: its host or
its supervisor died.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.checkpoint.names import MANIFEST_NAME, StagingName, step_name, step_of
from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import (
    BoundedCalls,
    ForeignFile,
    close,
    open_to_read,
    open_to_write,
    read_at_most,
    refusal,
)
from holdfast.runtime.run.run_directory import RunDirectory

Record: TypeAlias = dict[str, Any]

TAIL_BYTES = 1 << 20
"""The end of a journal that tells how a run stands."""

_CLOSED = -1
_ENDS_WITHIN_S = 5.0
_LOG = logging.getLogger(__name__)
_OF_STEPS = frozenset({"step", "checkpoint", "drained", "completed", "stopped"})
_LARGEST_MANIFEST_BYTES = 256 << 20

_HISTORY_WITHIN_S = 10.0
"""The journal of a year is read in a few seconds."""

_TELLING = (
    *("job_started", "job_ended", "journal_removed", "relaunch"),
    *("rejected", "checkpoint", "drained", "mended"),
)
# Nearly all lines are steps, perhaps millions, so lines are picked by their first bytes.
_MARKS = tuple(f'"{event}"'.encode() for event in _TELLING)


class Journal:
    """Appends the events of one process to the journal of its job.

    Belongs to the process that made it: a forked child makes its own.
    """

    def __init__(self, path: Path, *, run_id: str, source: str, is_required: bool = True) -> None:
        """Open ``path`` for appending; ``source`` names the process, as in ``worker 3``.

        A journal that is not required loses lines until it can be opened.

        Raises:
            OSError: the file is required, and cannot be created or opened.
        """
        self._path = path
        self._common = {"run_id": run_id, "source": source}
        self._calls = BoundedCalls("holdfast-journal")
        self._lost = 0
        self._fd = _CLOSED
        if is_required:
            self._open()
        else:
            self._calls.run(self._open_or_warn)

    def record(self, event: str, /, **fields: object) -> None:
        """Append one event with its fields, stamped with monotonic and wall-clock seconds.

        Never raises for a full or failing file system, and waits a second at most for one
        that hangs (see the top of this file).
        """
        self.record_all([(event, fields)])

    def record_all(self, events: Iterable[tuple[str, Record]]) -> None:
        """Append several events as ``record`` does, and wait for all of them together."""
        lines = [self._line(event, fields) for event, fields in events]
        was_behind = self._calls.is_behind
        if not self._calls.run(lambda: self._write_all(lines)):
            self._lost += len(lines)
        if self._calls.is_behind and not was_behind:
            _LOG.warning("journal %s: its file system hangs; events wait", self._path)

    def close(self) -> None:
        """Write the events that wait, but not for long, and close the file and the thread.

        A process that ends without it loses the events that wait.  A closed journal takes no more.
        """
        self._calls.run(self._close)
        self._calls.close(_ENDS_WITHIN_S)

    def _write_all(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._write(line)

    def _write(self, line: bytes) -> None:
        if not self._is_there():
            self._lost += 1
            return
        gap = self._lost
        if gap and self._append(self._line("journal_gap", {"lines": gap})):
            self._lost -= gap
        if self._lost or not self._append(line):
            self._lost += 1

    def _close(self) -> None:
        if self._fd != _CLOSED:
            close(self._fd)

    def _open_or_warn(self) -> None:
        try:
            self._open()
        except OSError as error:
            self._warn_once(str(error))

    def _open(self) -> None:
        intruder = RunDirectory(self._path.parent).intruder(self._common["run_id"])
        if intruder is not None:
            raise OSError(f"its directory belongs to run {intruder} now")
        fd = open_to_write(self._path, os.O_APPEND)
        try:
            self._is_empty = os.fstat(fd).st_size == 0
        except OSError:
            close(fd)
            raise
        self._fd = fd

    def _is_there(self) -> bool:
        """Return whether a file can be written; begin it again if it was removed or moved.

        A file that was moved goes on if there cannot be another one in its place, as when its
        directory is another run's now.
        """
        before = self._fd
        if before != _CLOSED and _has_name(before, self._path):
            return True
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._open()
        except OSError as error:
            if before != _CLOSED and _has_name(before):
                return True
            self._warn_once(str(error))
            return False
        if before != _CLOSED:
            close(before)
            if self._is_empty:
                self._append(self._line("journal_removed", {}))
        return True

    def _line(self, event: str, fields: Record) -> bytes:
        stamp = {"event": event, "now": time.monotonic(), "time": time.time()}
        return _ENCODER.encode(stamp | self._common | fields).encode() + b"\n"

    def _append(self, line: bytes) -> bool:
        """Write one line as one piece; return whether all of it was taken."""
        try:
            # Another process may have torn its line on a full disk.  One that is being written
            # looks like that, too: then an empty line comes between them, and readers skip it.
            piece = line if _ends_with_newline(self._fd) else b"\n" + line
            written = os.write(self._fd, piece)
        except OSError as error:
            self._warn_once(str(error))
            return False
        is_whole = written == len(piece)
        if not is_whole:
            self._warn_once(
                f"the file system took {written} of {len(piece)} bytes, as a full one does"
            )
        return is_whole

    def _warn_once(self, reason: str) -> None:
        if not self._lost:
            # Few of the processes that write here have set up logging: so the name stands here.
            _LOG.warning(
                "holdfast: journal %s loses events (%s); the job goes on, but status and report "
                "will not know of them",
                self._path,
                reason,
            )


def _has_name(fd: int, path: Path | None = None) -> bool:
    """Return whether an open file still has a name, and that of ``path`` if one is given.

    A file that fails (NFS) counts as gone.  A name that cannot be looked at counts as its own.
    """
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    if path is None or not found.st_nlink:
        return found.st_nlink > 0
    try:
        return os.path.samestat(found, path.lstat())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _ends_with_newline(fd: int) -> bool:
    """Return whether an open file is empty or ends with a newline."""
    size = os.fstat(fd).st_size
    return not size or os.pread(fd, 1, size - 1) == b"\n"


def _plain(value: object) -> object:
    """Turn values that JSON lacks (NumPy scalars, paths, sets) into values that it has."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


_ENCODER = json.JSONEncoder(default=_plain)


class JournalReader:
    """Reads a journal from its beginning or near its end, and then what is appended to it."""

    def __init__(self, path: Path, *, tail_bytes: int | None = None) -> None:
        """Begin ``tail_bytes`` before the end, if given; the file may come later."""
        self._path = path
        self._tail_bytes = tail_bytes
        self._position: int | None = None

    def read(self) -> Iterator[Record]:
        """Yield the records that have come since the last call, in the order of their appending.

        Lines that are torn or no JSON object are skipped.

        Raises:
            OSError: the file cannot be read.
        """
        return filter(None, map(parse_line, self.lines()))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that have come since the last call; a last one only if it is whole.

        Raises:
            OSError: the file cannot be read.
        """
        with open_to_read(self._path) as file:
            size = file.seek(0, os.SEEK_END)
            if self._position is None:
                self._position = 0 if self._tail_bytes is None else max(0, size - self._tail_bytes)
            elif size < self._position:  # it was removed, and begins again
                self._position = 0
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n") and parse_line(line) is None:
                    return  # its writer may be about to end it
                self._position += len(line)
                yield line


def parse_line(line: bytes) -> Record | None:
    """Return the record in a journal's line, None if the line is torn or no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # covers JSONDecodeError and UnicodeDecodeError
        return None
    return record if isinstance(record, dict) and "event" in record else None


def read_journal(path: Path) -> list[Record]:
    """Return all records of a journal.

    Raises:
        OSError: the file cannot be read.
    """
    return list(JournalReader(path).read())


def completed_step(records: Iterable[Record]) -> int | None:
    """Return the step that the last launch of ``records`` has completed, None if it has not."""
    step = None
    for record in records:
        if record["event"] in ("job_started", "launch"):
            step = None
        elif record["event"] == "completed":
            step = record.get("step")
    return step


def has_step(path: Path) -> bool:
    """Return whether a journal knows of a step that was trained or saved.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        records = map(parse_line, JournalReader(path).lines())
        return any(record is not None and record["event"] in _OF_STEPS for record in records)
    except FileNotFoundError:
        return False


def next_generation(directory: RunDirectory) -> int:
    """Return a generation that the run has not used.

    Raises:
        UsageError: the journal cannot be read.
        RunUnreadable: the same, but only just now.
    """
    path = directory.journal_path
    try:
        journalled = last_generation(path)
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        sentence = f"{path} cannot be read: {error.strerror or error}; give this user access to it"
        raise refusal(path, error, sentence) from error
    return max(journalled, *_saved(directory), 0) + 1


def last_generation(path: Path) -> int:
    """Return the largest generation near the end of a journal, 0 if there is none.

    Generations only grow, and every launch and world records its own, so the
    last part of the file is enough.
    """
    reader = JournalReader(path, tail_bytes=TAIL_BYTES)
    try:
        found = [record.get("generation", 0) for record in reader.read()]
    except FileNotFoundError:
        return 0
    return max((number for number in found if isinstance(number, int)), default=0)


def _saved(directory: RunDirectory) -> Iterator[int]:
    """Yield the generations of saves, finished and not, as far as they can be read."""
    with contextlib.suppress(OSError):
        names = os.listdir(directory.checkpoints_path)
        for name in names:
            save = StagingName.parse(name) or StagingName.parse_bad(name)
            if save is not None:
                yield save.generation
        newest = max((step for name in names if (step := step_of(name)) is not None), default=None)
        if newest is not None:
            yield _generation_of(directory, newest)


def _generation_of(directory: RunDirectory, step: int) -> int:
    path = directory.checkpoints_path / step_name(step) / MANIFEST_NAME
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = read_at_most(path, _LARGEST_MANIFEST_BYTES).decode()
        found, _ = json.JSONDecoder().raw_decode(content)  # a line with its digest follows
        generation = found.get("generation") if isinstance(found, dict) else None
        if isinstance(generation, int):
            return generation
    return 0


class HistoryReader:
    """Reads a run's history, and later only what its journal has got since.

    A disk that hangs costs the newest part of it, and holds up no relaunch.
    """

    def __init__(self, path: Path) -> None:
        self._calls = BoundedCalls("holdfast-history", _HISTORY_WITHIN_S)
        self._reader = JournalReader(path)
        self._seconds = 0.0
        self._failures = 0
        self._saved_step: int | None = None
        self._local_dir: str | None = None
        self._rejected: set[int] = set()
        self._began: float | None = None  # of a job that has not ended yet
        self._before = b""

    def read(self) -> FailureHistory:
        """Return the training time and the failures so far; a journal that fails adds none."""
        self._calls.run(self._read)
        rejected = tuple(sorted(self._rejected))
        return FailureHistory(self._seconds + self._open_seconds(), self._failures, rejected)

    @property
    def saved_step(self) -> int | None:
        """The step of the newest checkpoint that the journal knew of at the last reading."""
        return self._saved_step

    @property
    def local_dir(self) -> str | None:
        """The ``--local-dir`` of the last job, None if it had none."""
        return self._local_dir

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._reader.lines():
                record = _telling(line)
                if record is not None:
                    self._hear(record)
                    self._hear_step(record)
                self._before = line

    def _hear(self, record: Record) -> None:
        event, now = record["event"], float(record["now"])
        if event == "checkpoint":
            self._saved_step = record.get("step")
        self._failures += event == "relaunch" and record.get("is_renewal") is not True
        if event == "job_started":
            local = record.get("local_dir")
            self._local_dir = local if isinstance(local, str) else None
            self._failures += self._began is not None
            self._seconds += self._open_seconds()
            self._began = now
        elif event == "journal_removed":  # its job goes on, and writes down its begin once more
            self._seconds += self._open_seconds()
            self._began = None
        elif event == "job_ended" and self._began is not None:
            self._seconds += max(0.0, now - self._began)
            self._began = None

    def _hear_step(self, record: Record) -> None:
        event, step = record["event"], record.get("step")
        is_local = "place" in record  # the run directory may have a sound one
        if event == "rejected" and isinstance(step, int) and not is_local:
            self._rejected.add(step)
        elif event in ("checkpoint", "drained", "mended") and not is_local:
            self._rejected.discard(step)

    def _open_seconds(self) -> float:
        """Return the time of a job without an end, up to its last line.

        Monotonic times are compared only within one job, which lived within one boot.
        """
        last = _time_of(parse_line(self._before))  # None if the line is torn
        if self._began is None or last is None:
            return 0.0
        return max(0.0, last - self._began)


def _telling(line: bytes) -> Record | None:
    """Return the record of a line that counts here and has a time, None for any other."""
    if not any(mark in line for mark in _MARKS):
        return None
    record = parse_line(line)
    if record is None or record["event"] not in _TELLING:
        return None
    return None if _time_of(record) is None else record


def _time_of(record: Record | None) -> float | None:
    now = None if record is None else record.get("now")
    return float(now) if isinstance(now, (int, float)) else None
