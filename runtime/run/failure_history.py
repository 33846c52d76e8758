"""How often a run has lost all of its workers, told from its journal.

A death that survivors outlive costs no checkpoint, so it does not count here.  What
counts is each launch that had to be followed by another one, and each job that broke
off without a last word: its host or its supervisor died.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from holdfast.recovery.schedule import Auto, FailureHistory, Schedule
from holdfast.runtime.run.own_file import open_to_read
from holdfast.runtime.run.run_directory import RunDirectory

# Nearly all lines are steps, of which there may be millions.
_TELLING = tuple(
    f'{{"event": "{name}"'.encode() for name in ("job_started", "job_ended", "relaunch")
)


def history_of(schedule: Schedule, run_dir: Path) -> FailureHistory:
    """Return what the journal of ``run_dir`` tells, if ``schedule`` depends on it."""
    if not isinstance(schedule, Auto):
        return FailureHistory()
    try:
        with open_to_read(RunDirectory(run_dir).journal_path) as file:
            return failure_history(file)
    except OSError:
        return FailureHistory()


def failure_history(lines: Iterable[bytes]) -> FailureHistory:
    """Return the training time and the failures that a journal's lines tell of.

    Monotonic times are compared within one job only: it lived within one boot.
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
    if not line.startswith(_TELLING):
        return None
    try:
        record = json.loads(line)
        return str(record["event"]), float(record["now"])
    except (ValueError, KeyError, TypeError):
        return None


def _moment(line: bytes, default: float) -> float:
    """Return when a line was written; ``default`` if it is torn."""
    try:
        return float(json.loads(line)["now"])
    except (ValueError, KeyError, TypeError):
        return default
