"""Entries: the lines of a journal, with their events.

A line has the name of its event, the fields, and who wrote it when.  A line that is not what it
says is left out.  Of an event that is not known only the moment counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, final

from holdfast.runtime.errors import JobError, UsageError
from holdfast.runtime.run import checkpoint_events, events  # noqa: F401  (fill the list)
from holdfast.runtime.run.event_kinds import EVENTS, KINDS, Kind, is_number
from holdfast.runtime.run.files import ForeignFile, refusal
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader, Recorder
from holdfast.runtime.run.run_directory import RunDirectory

Event: TypeAlias = NamedTuple
_Event = TypeVar("_Event")
_Event_co = TypeVar("_Event_co", covariant=True)


def record(journal: Recorder, event: Event) -> None:
    """Append an event to a journal."""
    journal.record(name_of(event), **fields_of(event))


def kind_of(event: object) -> Kind | None:
    """Return what holdfast knows of an event, None of anything else."""
    return KINDS.get(type(event))


def name_of(event: Event) -> str:
    """Return the event's name in the journal."""
    return KINDS[type(event)].name


def words_of(event: object) -> str:
    """Return the event in a sentence of one line."""
    return " ".join(KINDS[type(event)].words(event).split())


def fields_of(event: Event) -> dict[str, object]:
    """Return the fields of the event's line."""
    fields, defaults = event._asdict(), event._field_defaults
    return {n: value for n, value in fields.items() if value is not None or n not in defaults}


@final
@dataclass(frozen=True, slots=True)
class Entry(Generic[_Event_co]):
    """A line of a journal: an event, None for one that is not known, and who wrote it when.

    ``now`` is in seconds of the monotonic clock, ``time`` in seconds since 1970.
    """

    event: _Event_co
    now: float
    time: float
    run_id: str | None = None
    source: str | None = None

    @property
    def words(self) -> str:
        """The event in a sentence; nothing if people are not told of it."""
        kind = kind_of(self.event)
        if kind is None or not kind.is_told:
            return ""
        return words_of(self.event)


def entries_of(lines: Iterable[Mapping[str, Any]]) -> list[Entry[Any]]:
    """Return the lines that are what they say, in their order."""
    return [entry for entry in map(entry_of, lines) if entry is not None]


def entry_of(line: Mapping[str, Any]) -> Entry[Any] | None:
    """Return a line with its event, None if it makes no sense."""
    name, now, time = line.get("event"), line.get("now"), line.get("time")
    if not isinstance(name, str) or now is None or time is None:
        return None
    if not is_number(now) or not is_number(time) or time < 0:
        return None
    event = EVENTS[name].read(line) if name in EVENTS else None
    if event is None and name in EVENTS:
        return None
    run_id, source = line.get("run_id"), line.get("source")
    return Entry(
        event,
        now,
        time,
        run_id if isinstance(run_id, str) else None,
        source if isinstance(source, str) else None,
    )


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


def last_job_in(directory: RunDirectory) -> list[Entry[Any]]:
    """Return the journal from the begin of the last job on; of a long job only its end."""
    entries: list[Entry[Any]] = []
    with contextlib.suppress(JobError, OSError):
        reader = JournalReader(directory.journal_path, tail_bytes=TAIL_BYTES)
        read_on(directory, reader.read, entries)
    begins = [at for at, entry in enumerate(entries) if type(entry.event) is events.JobStarted]
    return entries[begins[-1] :] if begins else entries


def of(entries: Iterable[Entry[Any]], kind: type[_Event]) -> list[Entry[_Event]]:
    """Return the entries of one kind of event."""
    return [entry for entry in entries if type(entry.event) is kind]


def last_of(entries: Sequence[Entry[Any]], kind: type[_Event]) -> Entry[_Event] | None:
    """Return the newest entry of one kind of event, None without any."""
    return next((entry for entry in reversed(entries) if type(entry.event) is kind), None)


def completed_step(entries: Sequence[Entry[Any]]) -> int | None:
    """Return the step that the last launch has completed, None if it has not."""
    for entry in reversed(entries):
        if isinstance(entry.event, events.Completed):
            return entry.event.step
        if isinstance(entry.event, (events.Launch, events.JobStarted)):
            break
    return None
