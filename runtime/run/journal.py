"""The journal: every event of a job, one JSON object a line, append only.

One process writes the journal of a job: its writer, by the word of the head, which stamps the
records of all processes.  Two others may write lines as well: a client before there is a head,
and scripts that run without one.  The kernel keeps their lines whole: a file opened with
``O_APPEND`` takes each ``write`` as one piece at its end (POSIX.1-2017, ``write``).  So each
line is exactly one ``write``.  Six things can still go wrong, and each has one answer:

* a process dies, or the machine loses power, within a line: the line is *torn*.
  A journal that is opened begins a new line after a torn one, and readers skip
  lines that do not parse;
* the file system is full, fails or is gone: training goes on without its journal.
  Lines are counted as lost, and one warning is logged.  The first line that can be
  written again is a ``journal_gap`` with the number of missing lines;
* a user removes the file: it is made again.  A network file system may show that as a
  descriptor that fails.  If the directory is gone or another job's, lines are lost;
* another user puts a link or another file in its place: that is refused, like a file that
  cannot be opened (`files`);
* the file system hangs: a thread of its own writes, and nobody waits for it for more than
  a second (`files.BoundedCalls`);
* two threads of a process write at once: that one thread writes the lines of both.

Nothing is fsynced: the journal is a history, and no job is restored from it.  It tells two things
to a job that begins: how often the run has failed (`failure_history`), and the *generation* that
comes next.  Generations name worlds and saves, and none is used again.  The
journal tells the newest one, but it may be lost, or its disk full.  So the store is asked as well:
names of unfinished saves hold the generation that made them, and so does the manifest of the newest
step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.checkpoint.names import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST_NAME,
    StagingName,
    step_name,
)
from holdfast.recovery.event import Event
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.events import JournalGap
from holdfast.runtime.run.files import (
    BoundedCalls,
    ForeignFile,
    close,
    open_to_read,
    read_at_most,
    refusal,
)
from holdfast.runtime.run.run_directory import Ownership, RunDirectory
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.codec import to_plain

Record: TypeAlias = dict[str, Any]

TAIL_BYTES = 1 << 20
"""The end of a journal that tells how a run stands."""

_CLOSED = -1
_ENDS_WITHIN_S = 5.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event as it travels to the head, with its age in seconds: each host has its own clock."""

    name: str
    fields: Record
    age_s: float = 0.0

    @staticmethod
    def of(event: Event, age_s: float = 0.0) -> RecordedEvent:
        """Return an event of ``age_s`` ago."""
        return RecordedEvent(event.NAME, fields_of(event), max(0.0, age_s))

    def record(self, run_id: str, source: str) -> Record:
        """Return the journal's record, with the moment by both clocks."""
        now, moment = time.monotonic() - self.age_s, time.time() - self.age_s
        stamp = {"event": self.name, "now": now, "time": moment, "run_id": run_id, "source": source}
        return {**stamp, **self.fields}


@dataclass(frozen=True, slots=True)
class Records:
    """Events of one process, ``source``, for the journal; the head stamps them."""

    events: tuple[RecordedEvent, ...]
    source: str = ""


def fields_of(event: Event) -> Record:
    """Return the fields of an event's line; a field that may be None has no place while it is."""
    return {
        field.name: to_plain(value)
        for field in dataclasses.fields(event)
        if (value := getattr(event, field.name)) is not None or field.default is not None
    }


def line_of(record: Record) -> str:
    """Return a record as a line, without its end."""
    return json.dumps(record)


class SentRecords:
    """Sends the events of one process through its agent to the head, which has the journal.

    What was sent is on its way, even if this process dies now.
    """

    def __init__(self, send: Callable[[Record], None]) -> None:
        self._send = send

    def record(self, event: Event) -> None:
        """Send an event that happens now."""
        self._send(to_message(Records((RecordedEvent.of(event),))))

    def record_all(self, events: Iterable[tuple[Event, float]]) -> None:
        """Send several events, each with its monotonic moment in seconds, in one message."""
        now = time.monotonic()
        sent = tuple(RecordedEvent.of(event, now - moment) for event, moment in events)
        self._send(to_message(Records(sent)))


class AppendedFile:
    """Takes whole lines, each call's as one piece; ``gap`` tells of lines that are missing.

    A file that was removed or moved is made again.  All but ``open`` raise nothing, and all may
    hang with the disk.
    """

    def __init__(self, path: Path, owner: Ownership, gap: Callable[[int], bytes]) -> None:
        self._path = path
        self._owner = owner
        self._gap = gap
        self._fd = _CLOSED
        self.lost = 0
        """The lines that the file has not taken, and does not tell of yet."""

    @property
    def is_open(self) -> bool:
        """Whether it has a file now."""
        return self._fd != _CLOSED

    def open(self) -> None:
        """Open the file, or its successor.

        Raises:
            OSError: it cannot be created or opened, or belongs to another job.
        """
        fd = self._owner.open_to_append(self._path)
        self.close()
        self._fd = fd

    def append(self, lines: bytes, missing: int = 0) -> str:
        """Append lines, after which so many are missing; return why some are lost, if any are."""
        before, behind = (self._gap(lost) if lost else b"" for lost in (self.lost, missing))
        content = before + lines + behind
        self.lost += lines.count(b"\n") + missing
        try:
            self._find_file()
            self._make_room(len(content))
            # Another process may have torn its line on a full disk.  One that is being written
            # looks like that, too: then an empty line comes between them, and readers skip it.
            torn = 0 if _ends_with_newline(self._fd) else 1
            written = os.write(self._fd, b"\n" * torn + content) - torn
        except OSError as error:
            return str(error)
        if written == len(content) or content.count(b"\n", 0, max(0, written)):
            self.lost = content.count(b"\n", written)
        if written == len(content):
            return ""
        return f"the file system took {written} of {len(content)} bytes, as a full one does"

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._fd != _CLOSED:
            close(self._fd)
            self._fd = _CLOSED

    def _make_room(self, nbytes: int) -> None:
        """Go on with another file if this one has no room for so much."""

    def _find_file(self) -> None:
        """Open the file unless it is open and has its name.

        A file that was moved goes on if there cannot be another one in its place, as when its
        directory is another job's now.
        """
        if self.is_open and _has_name(self._fd, self._path):
            return
        try:
            self.open()
        except OSError:
            if not self.is_open or not _has_name(self._fd):
                raise


class JournalFile(AppendedFile):
    """The file of a journal, which may be full, fail, or be removed at any moment."""

    def __init__(
        self, path: Path, owner: Ownership, warn: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(path, owner, self._missing)
        self._warn = warn or (lambda text: _LOG.warning("holdfast: %s", text))

    def open_or_warn(self) -> None:
        """Open the file; warn if it cannot be opened: the next line tries again."""
        try:
            self.open()
        except OSError as error:
            self._warn_of(str(error))

    def write(self, lines: Sequence[str]) -> None:
        """Append lines together; those that cannot be written are counted as lost."""
        had_lost = self.lost
        reason = self.append("".join(f"{line}\n" for line in lines).encode()) if lines else ""
        if reason and not had_lost:
            self._warn_of(reason)

    def _warn_of(self, reason: str) -> None:
        # Few of the processes that write here have set up logging: so the name stands here.
        self._warn(
            f"journal {self._path} loses events ({reason}); the job goes on, but status and "
            "report will not know of them"
        )

    def _missing(self, lines: int) -> bytes:
        event = RecordedEvent.of(JournalGap(lines))
        return f"{line_of(event.record(self._owner.run_id, 'journal'))}\n".encode()


class Journal:
    """Appends the events of one process that has no head, and waits for no disk for long.

    Belongs to the process that made it: a forked child makes its own.
    """

    def __init__(self, path: Path, *, run_id: str, source: str) -> None:
        """Open ``path`` for appending; ``source`` names the process.

        Raises:
            OSError: the file cannot be created or opened.
        """
        self._path = path
        self._run_id, self._source = run_id, source
        self._calls = BoundedCalls("holdfast-journal")
        self._file = JournalFile(path, Ownership(path.parent, run_id))
        self._file.open()

    def record(self, event: Event) -> None:
        """Append an event that happens now, stamped with monotonic and wall-clock seconds.

        Never raises for a full or failing file system, and waits a second at most for one
        that hangs (see the top of this file).
        """
        self.record_all([(event, time.monotonic())])

    def record_all(self, events: Iterable[tuple[Event, float]]) -> None:
        """Append several events as ``record`` does, and wait for all of them together."""
        now = time.monotonic()
        found = [RecordedEvent.of(event, now - moment) for event, moment in events]
        lines = [line_of(each.record(self._run_id, self._source)) for each in found]
        was_behind = self._calls.is_behind
        if not self._calls.run(lambda: self._file.write(lines)):
            self._file.lost += len(lines)
        if self._calls.is_behind and not was_behind:
            _LOG.warning("journal %s: its file system hangs; events wait", self._path)

    @property
    def lost(self) -> int:
        """The lines that were not written, and that the journal does not count yet."""
        return self._file.lost

    def close(self) -> None:
        """Write the events that wait, but not for long, and close the file and the thread.

        A process that ends without it loses the events that wait.  A closed journal takes no more.
        """
        self._calls.run(self._file.close)
        self._calls.close(_ENDS_WITHIN_S)


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


def parse_line(line: str | bytes) -> Record | None:
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
        for name in os.listdir(directory.checkpoints_path):
            save = StagingName.parse(name, "tmp", "bad")
            if save is not None:
                yield save.generation
    if (newest := directory.newest_step) is not None:
        yield _generation_of(directory.checkpoints_path / step_name(newest) / MANIFEST_NAME)


def _generation_of(manifest: Path) -> int:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = read_at_most(manifest, LARGEST_MANIFEST_BYTES).decode()
        found, _ = json.JSONDecoder().raw_decode(content)  # a line with its digest follows
        generation = found.get("generation") if isinstance(found, dict) else None
        if isinstance(generation, int):
            return generation
    return 0
