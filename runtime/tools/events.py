"""The events of a journal: which records are what they say, and which people hear of, in words.

A journal may be edited by hand, torn by a full disk, or written by another version.  A command that
shows how a run stands must not fail because of one line, so the rest tells all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run import progress
from holdfast.runtime.run.files import ForeignFile, refusal
from holdfast.runtime.run.journal import Record
from holdfast.runtime.run.run_directory import RunDirectory

_MOST_SECONDS = 1 << 37
"""No clock shows more, and later moments have no date."""

_MOST = 1 << 63


def read_on(
    directory: RunDirectory, read: Callable[[], Iterable[Record]], records: list[Record]
) -> None:
    """Append the sound ones of the records that ``read`` finds in the journal of a run.

    Raises:
        UsageError: the journal cannot be read, or holds no record at all.
    """
    path, journal = directory.path, directory.journal_path
    try:
        records += sound_records(read())
    except FileNotFoundError as error:
        raise UsageError(f"no job has started in {path} yet") from error
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise refusal(journal, error, f"{journal} cannot be read: {error.strerror}") from error
    if not records:
        raise UsageError(f"{journal} holds no records; no job has started in {path} yet")


def sound_records(records: Iterable[Record]) -> list[Record]:
    """Return the records whose fields have the kinds that their event asks for."""
    return [record for record in records if _is_sound(record)]


def _is_sound(record: Record) -> bool:
    event = record["event"]
    needed = _FIELDS.get(event, {}) if isinstance(event, str) else {"event": _is_text}
    optional = {name: is_one for name, is_one in _IF_GIVEN.items() if name in record}
    kinds = (_STAMP | optional | needed).items()
    return all(is_one(record.get(name)) for name, is_one in kinds)


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and abs(value) < _MOST_SECONDS  # a NaN is not


def _is_date(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


_Kind = Callable[[Any], bool]
_STAMP: dict[str, _Kind] = {"now": _is_number, "time": _is_date}
_IF_GIVEN: dict[str, _Kind] = {"seconds": _is_number, "steps": _is_count}
"""Fields that goodput reads of some events, where they are."""

_STEP_AND_REASON: dict[str, _Kind] = {"step": _is_count, "reason": _is_text}
_FIELDS: Mapping[str, dict[str, _Kind]] = {
    "checkpoint": {"step": _is_count, "seconds": _is_number, "bytes": _is_count},
    "checkpoint_failed": _STEP_AND_REASON,
    "completed": {"step": _is_count},
    "epoch": {"epoch": _is_count, "step": _is_count},
    "failure": {"worker": _is_count, "cause": _is_text},
    "fault": {"kind": _is_text, "worker": _is_count, "step": _is_count, "site": _is_text},
    "job_ended": {"exit_code": _is_count, "reason": _is_text},
    "job_started": {"workers": _is_count},
    "launch": {"workers": _are_counts},
    "memory_differs": {"step": _is_count, "workers": _are_counts, "has_majority": _is_switch},
    "mend_failed": {"reason": _is_text, "holder": _is_text},
    "mended": {"step": _is_count, "taken": _is_count, "parts": _is_count, "holder": _is_text},
    "output_dropped": {"lines": _is_count},
    "paused": {"seconds": _is_number, "until": _is_number},
    "pressure": {"resource": _is_text, "text": _is_text},
    "recovery": {
        "generation": _is_count,
        "step": _is_count,
        "lost": _are_counts,
        "survivors": _are_counts,
    },
    "rejected": _STEP_AND_REASON,
    "relaunch": {"reason": _is_text, "workers": _are_counts},
    "renewing": {"reason": _is_text},
    "restored": {"step": _is_count},
    "scrub_failed": _STEP_AND_REASON,
    "stalled": {"limit": _is_text, "seconds": _is_number, "workers": _are_counts},
    "step": {
        "step": _is_count,
        "epoch": _is_count,
        "seconds": _is_number,
        "samples": _is_count,
        "generation": _is_count,
    },
    "stopped": {"step": _is_count},
    "suspected": {"worker": _is_count, "seconds": _is_number, "step": _is_count},
    "suspicion": {"text": _is_text},
    "unreadable": {**_STEP_AND_REASON, "seconds": _is_number},
    "warning": {"text": _is_text},
    "world": {"workers": _are_counts, "step": _is_count},
}
"""What the readers of an event rely on."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event; ``time`` is in seconds since 1970."""

    time: float
    text: str


def told_events(records: Sequence[Record], most: int) -> tuple[EventLine, ...]:
    """Return the newest ``most`` events that are worth a line, the newest last."""
    found: list[EventLine] = []
    for record in reversed(records):
        say = _WORDS.get(record["event"])
        text = "" if say is None else " ".join(say(record).split())
        if text and text not in {event.text for event in found[-1:]}:  # workers tell some too
            found.append(EventLine(float(record["time"]), text))
        if len(found) == most:
            break
    return tuple(reversed(found))


def _started(record: Record) -> str:
    script = str(record.get("script", "a script")).rpartition("/")[2]
    return f"started {script} on {progress.count(record['workers'], 'worker')}"


def _recovered(record: Record) -> str:
    lost, left = (_named(record[name]) for name in ("lost", "survivors"))
    return f"recovered at step {record['step']} without {lost}; {left} left"


def _died(record: Record) -> str:
    step = record.get("step")
    place = "" if step is None else f" after step {step}"
    return f"worker {record['worker']} died{place} ({record['cause']})"


def _named(workers: Iterable[int]) -> str:
    """Return workers with their ids."""
    ids = [str(worker) for worker in workers]
    return f"{'worker' if len(ids) == 1 else 'workers'} {', '.join(ids) or 'none'}"


def _text(record: Record) -> str:
    return str(record.get("text", record["event"]))


def _unread(record: Record) -> str:
    waited = progress.duration(record["seconds"])
    return f"gave up the checkpoint of step {record['step']} after {waited}: {record['reason']}"


_WORDS: Mapping[str, Callable[[Record], str]] = {
    "agent_killed": lambda r: f"the agent was killed: {r.get('reason')}",
    "checkpoint_failed": lambda r: f"the checkpoint of step {r['step']} failed: {r['reason']}",
    "completed": lambda r: f"completed step {r['step']}",
    "deadline": _text,
    "failure": _died,
    "hung_up": lambda _: "SIGHUP: the job goes on without its terminal",
    "job_ended": lambda r: f"ended with exit code {r['exit_code']}: {r['reason']}",
    "job_started": _started,
    "memory_differs": lambda r: f"the memory of {_named(r['workers'])} differs at step {r['step']}",
    "mended": lambda r: f"mended step {r['step']} from {r['holder']}",
    "paused": lambda r: f"the job stood still for {progress.duration(r['seconds'])}",
    "pressure": _text,
    "recovery": _recovered,
    "rejected": lambda r: f"rejected the checkpoint of step {r['step']}: {r['reason']}",
    "renewing": lambda r: f"renewing the launch: {r['reason']}",
    "relaunch": lambda r: (
        f"relaunched {progress.count(len(r['workers']), 'worker')}: {r['reason']}"
    ),
    "restored": lambda r: f"restored step {r['step']}",
    "stalled": lambda r: (
        f"{_named(r['workers'])} stood still for {progress.duration(r['seconds'])}"
    ),
    "stopped": lambda r: f"stopped at step {r['step']} with a checkpoint",
    "store_removed": lambda r: f"{r['directory']} was removed, or its disk unmounted",
    "supervisor_failed": lambda r: f"the supervisor failed: {r.get('reason')}",
    "suspected": lambda r: f"worker {r['worker']} has not come on after step {r['step']}",
    "suspicion": _text,
    "taken_over": lambda _: "another supervisor has taken the job over",
    "unreadable": _unread,
    "warning": _text,
}
"""Steps, epochs, worlds and single checkpoints are not among them: the status has them."""
