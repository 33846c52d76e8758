"""The number of times that a run has lost all of its workers, told from its journal.

A death that leaves survivors does not send the run back to a checkpoint, so it does not
count here.  Each launch that was lost and followed by another one counts.  So does each job
without a record of its end: its host or its supervisor died.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.run.bounded_calls import BoundedCalls
from holdfast.runtime.run.journal import JournalReader, Record, parse_line

_WAITS_S = 10.0
"""The journal of a year is read in a few seconds."""

_TELLING = (
    *("job_started", "job_ended", "journal_removed", "relaunch"),
    *("rejected", "checkpoint", "drained", "mended"),
)
# Nearly all lines are steps, perhaps millions, so lines are picked by their first bytes.
_MARKS = tuple(f'"{event}"'.encode() for event in _TELLING)


class HistoryReader:
    """Reads a run's history, and later only what its journal has got since.

    A disk that hangs costs the newest part of it, and holds up no relaunch.
    """

    def __init__(self, path: Path) -> None:
        self._calls = BoundedCalls("holdfast-history", _WAITS_S)
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
        if self._began is None:
            return 0.0
        return max(0.0, _moment(self._before, self._began) - self._began)


def _telling(line: bytes) -> Record | None:
    """Return the record of a line that counts here and has a time, None for any other."""
    if not any(mark in line for mark in _MARKS):
        return None
    record = parse_line(line)
    if record is None or record["event"] not in _TELLING:
        return None
    return None if _time_of(record) is None else record


def _moment(line: bytes, default: float) -> float:
    """Return the time at which a line was written; ``default`` if it is torn."""
    now = _time_of(parse_line(line))
    return default if now is None else now


def _time_of(record: Record | None) -> float | None:
    now = None if record is None else record.get("now")
    return float(now) if isinstance(now, (int, float)) else None
