"""Entries: the lines of a journal, with their events.

A line has the name of its event, the fields, and who wrote it when.  A journal may be edited by
hand, torn by a full disk, or written by another version.  A command that shows how a run stands
must not fail because of one line, so the rest tells all the same:

* a line without a field that readers need is left out;
* a field that has a default, or may be None, is that if its value makes no sense;
* an event that is not known is `UnknownEvent`, and shown by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar, final

from holdfast.recovery.event import EVENTS, Event, WorkerCompleted
from holdfast.runtime.errors import JobError, UsageError
from holdfast.runtime.run import checkpoint_events, events  # noqa: F401  (fill the list)
from holdfast.runtime.run.files import ForeignFile, refusal
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader, parse_line
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.codec import WrongValue, field_readers

_Event = TypeVar("_Event", bound=Event)
_Event_co = TypeVar("_Event_co", bound=Event, covariant=True)

_MOST_SECONDS = 1 << 37
"""No clock shows more, and later moments have no date."""

_MOST = 1 << 63


@dataclass(frozen=True)
class UnknownEvent(Event, sentence="{name}"):
    """An event of another version of holdfast."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Entry(Generic[_Event_co]):
    """A line of a journal: an event, and who wrote it when.

    ``now`` is in seconds of the monotonic clock, ``time`` in seconds since 1970.
    """

    event: _Event_co
    now: float
    time: float
    run_id: str | None = None
    source: str | None = None

    @property
    def sentence(self) -> str:
        """The event in a sentence of one line; nothing if people are not told of it."""
        return sentence_of(self.event) if self.event.IS_TOLD else ""


Entries: TypeAlias = Sequence[Entry[Any]]


def sentence_of(event: Event) -> str:
    """Return the event in a sentence of one line."""
    return " ".join(event.describe().split())


def entries_of(lines: Iterable[Mapping[str, Any]]) -> list[Entry[Any]]:
    """Return the lines that are what they say, in their order."""
    return [entry for entry in map(entry_of, lines) if entry is not None]


def entry_in(line: str | bytes) -> Entry[Any] | None:
    """Return what stands in a line, None if it is torn or makes no sense."""
    record = parse_line(line)
    return None if record is None else entry_of(record)


def entry_of(line: Mapping[str, Any]) -> Entry[Any] | None:
    """Return a line with its event, None if it makes no sense."""
    name, now, time = line.get("event"), line.get("now"), line.get("time")
    if not isinstance(name, str) or not _is_moment(now) or not _is_moment(time) or time < 0:
        return None
    event = _read_event(name, line)
    if event is None:
        return None
    run_id, source = line.get("run_id"), line.get("source")
    return Entry(
        event,
        now,
        time,
        run_id if isinstance(run_id, str) else None,
        source if isinstance(source, str) else None,
    )


def _read_event(name: str, line: Mapping[str, Any]) -> Event | None:
    """Return the event of a line, None if the line lacks a field that readers need."""
    kind: Any = EVENTS.get(name)
    if kind is None:
        return UnknownEvent(name)
    values = {}
    for field, key, read, has_default in field_readers(kind):
        try:
            values[field] = _checked(read(line.get(key)))
        except WrongValue:
            if has_default:
                continue
            try:
                values[field] = read(None)
            except WrongValue:
                return None
    event: Event = kind(**values)
    return event


def _checked(value: Any) -> Any:
    """Return a value whose numbers a person may have counted or measured.

    Raises:
        WrongValue: one is negative, too large, or none.
    """
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if isinstance(number, float) and not abs(number) < _MOST_SECONDS:  # a NaN is not
            raise WrongValue(f" is {number}, which no clock shows")
        if isinstance(number, int) and not 0 <= number < _MOST:
            raise WrongValue(f" is {number}, which is no count")
    return value


def _is_moment(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < _MOST_SECONDS  # a NaN is not


def read_on(
    directory: RunDirectory,
    read: Callable[[], Iterable[Mapping[str, Any]]],
    entries: list[Entry[Any]],
) -> None:
    """Append to ``entries`` the lines that ``read`` finds in the journal of a run.

    Raises:
        UsageError: the journal cannot be read, or holds no line that makes sense.
    """
    path, journal = directory.path, directory.journal_path
    try:
        entries += entries_of(read())
    except FileNotFoundError as error:
        raise UsageError(f"no job has started in {path} yet") from error
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise refusal(journal, error, f"{journal} cannot be read: {error.strerror}") from error
    if not entries:
        raise UsageError(f"{journal} holds no records; no job has started in {path} yet")


def last_job_in(directory: RunDirectory) -> Entries:
    """Return the journal from the begin of the last job on; of a long job only its end."""
    entries: list[Entry[Any]] = []
    with contextlib.suppress(JobError, OSError):
        reader = JournalReader(directory.journal_path, tail_bytes=TAIL_BYTES)
        read_on(directory, reader.read, entries)
    return newest_job(entries)


def newest_job(entries: Entries) -> Entries:
    """Return the entries from the last begin of a job on; all of them without one."""
    return (jobs_of(entries) or [entries])[-1]


def jobs_of(entries: Entries) -> list[Entries]:
    """Cut a journal at each begin of a job; without any it is one job."""
    starts = [i for i, entry in enumerate(entries) if isinstance(entry.event, events.JobStarted)]
    ends = [*starts[1:], len(entries)]
    jobs = [entries[start:end] for start, end in zip(starts, ends, strict=False)]
    return jobs if jobs or not entries else [entries]


def of(entries: Iterable[Entry[Any]], kind: type[_Event]) -> list[Entry[_Event]]:
    """Return the entries of one kind of event."""
    return [entry for entry in entries if type(entry.event) is kind]


def last_of(entries: Entries, kind: type[_Event]) -> Entry[_Event] | None:
    """Return the newest entry of one kind of event, None without any."""
    return next((entry for entry in reversed(entries) if type(entry.event) is kind), None)


def completed_step(entries: Entries) -> int | None:
    """Return the step that the last launch has completed, None if it has not."""
    for entry in reversed(entries):
        if isinstance(entry.event, WorkerCompleted):
            return entry.event.step
        if isinstance(entry.event, (events.LaunchBegan, events.JobStarted)):
            break
    return None
