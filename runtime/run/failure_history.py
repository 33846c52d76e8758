"""The number of times that a run has lost all of its workers, told from its journal.

A death that leaves survivors does not send the run back to a checkpoint, so it does not
count here.  Each launch that was followed by another one counts.  So does each job without a
record of its end: its host or its supervisor died.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.recovery.schedule import Auto, FailureHistory, Schedule
from holdfast.runtime.run.journal import JournalReader, Record, parse_line
from holdfast.runtime.run.run_directory import RunDirectory

_TELLING = ("job_started", "job_ended", "relaunch")
# Nearly all lines are steps, perhaps millions, so lines are picked by their first bytes.
_MARKS = tuple(event.encode() for event in _TELLING)


def history_of(schedule: Schedule, run_dir: Path) -> FailureHistory:
    """Return the history in the journal of ``run_dir``, if ``schedule`` depends on it."""
    if not isinstance(schedule, Auto):
        return FailureHistory()
    try:
        return failure_history(JournalReader(RunDirectory(run_dir).journal_path).lines())
    except OSError:
        return FailureHistory()


def failure_history(lines: Iterable[bytes]) -> FailureHistory:
    """Return the training time and the failures that a journal's lines record.

    Monotonic times are compared only within one job, which lived within one boot.
    """
    seconds, failures = 0.0, 0
    began: float | None = None  # of a job that has not ended yet
    before = b""
    for line in lines:
        record = _telling(line)
        if record is not None:
            event, now = record
            failures += event == "relaunch"
            if event == "job_started":
                if began is not None:
                    failures += 1
                    seconds += max(0.0, _moment(before, began) - began)
                began = now
            elif event == "job_ended" and began is not None:
                seconds += max(0.0, now - began)
                began = None
        before = line
    if began is not None:
        seconds += max(0.0, _moment(before, began) - began)
    return FailureHistory(seconds, failures)


def _telling(line: bytes) -> tuple[str, float] | None:
    """Return event and time of a line that counts here, None for any other."""
    if not any(mark in line for mark in _MARKS):
        return None
    record = parse_line(line)
    if record is None or record["event"] not in _TELLING:
        return None
    now = _time_of(record)
    return None if now is None else (record["event"], now)


def _moment(line: bytes, default: float) -> float:
    """Return the time at which a line was written; ``default`` if it is torn."""
    now = _time_of(parse_line(line))
    return default if now is None else now


def _time_of(record: Record | None) -> float | None:
    now = None if record is None else record.get("now")
    return float(now) if isinstance(now, (int, float)) else None
