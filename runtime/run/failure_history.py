"""The history of a run's failures: how often it has lost all of its workers.

A death that leaves survivors does not send the run back to a checkpoint, so it does not count.
Each launch that was lost and followed by another one counts.  So does each job without a record of
its end: its host or its head died.  The journal tells it to a job that begins (`HistoryReader`),
and the head counts on, record by record (`RunHistory`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.recovery.event import HostLost
from holdfast.recovery.placement import REMEMBERED_S
from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.run.checkpoint_events import Checkpoint, Rejected
from holdfast.runtime.run.entries import Entry, entry_in, of
from holdfast.runtime.run.events import JobEnded, JobStarted, Relaunch, StepRestored
from holdfast.runtime.run.files import BoundedCalls
from holdfast.runtime.run.journal import JournalReader

_HISTORY_WITHIN_S = 10.0
"""The journal of a year is read in a few seconds."""

_TELLING = (JobStarted, JobEnded, Relaunch, Rejected, Checkpoint, StepRestored)
# Nearly all lines are steps, perhaps millions, so lines are picked by their first bytes.
_MARKS = tuple(f'"{event.NAME}"'.encode() for event in _TELLING)
_HOST_LOST = f'"{HostLost.NAME}"'.encode()
_NO_HISTORY = FailureHistory()


class RunHistory:
    """The history of a run's failures, counted record by record."""

    def __init__(self, before: FailureHistory = _NO_HISTORY, began: float | None = None) -> None:
        """Go on from a history; ``began`` is the second in which the present job has begun."""
        self._seconds = before.seconds
        self._failures = before.failures
        self._rejected = set(before.rejected)
        self._began = self._last = began
        self.saved_step: int | None = None
        """The step of the newest checkpoint that a record has told of."""
        self.hosts: tuple[str, ...] = ()
        """The hosts that were named for the last job, with their slots."""

    def count(self, entry: Entry[Any]) -> None:
        """Count a line, which may be of any event."""
        now, event = entry.now, entry.event
        match event:
            case JobStarted(hosts=hosts):
                self.hosts = hosts or ()
                self._failures += self._began is not None
                self._seconds += self._open_seconds(self._last)
                self._began = now
            case JobEnded() if self._began is not None:
                self._seconds += max(0.0, now - self._began)
                self._began = None
            case Relaunch(is_renewal=False):
                self._failures += 1
            case Rejected(step):
                self._rejected.add(step)
            case Checkpoint(step) | StepRestored(step):  # it is whole
                self._rejected.discard(step)
                if isinstance(event, Checkpoint):
                    self.saved_step = step
        self._last = now

    def passed(self, now: float | None) -> None:
        """Take note of the second of a record that counts for nothing else; None without one."""
        self._last = now

    def at(self, now: float | None = None) -> FailureHistory:
        """Return the training time and the failures, up to ``now`` or the last record."""
        open_s = self._open_seconds(self._last if now is None else now)
        return FailureHistory(self._seconds + open_s, self._failures, tuple(sorted(self._rejected)))

    def _open_seconds(self, last: float | None) -> float:
        """Return the time of a job without an end, up to ``last``.

        Monotonic times are compared only within one job, which lived within one boot.
        """
        if self._began is None or last is None:
            return 0.0
        return max(0.0, last - self._began)


class HistoryReader:
    """Reads a run's history, and later only what its journal has got since.

    A disk that hangs costs the newest part of it, and holds up no launch.
    """

    def __init__(self, path: Path) -> None:
        self._calls = BoundedCalls("holdfast-history", _HISTORY_WITHIN_S)
        self._reader = JournalReader(path)
        self.history = RunHistory()
        self._before = b""

    def read(self) -> FailureHistory:
        """Return the training time and the failures so far; a journal that fails adds none."""
        self._calls.run(self._read)
        return self.history.at(self._time_before())

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._reader.lines():
                entry = entry_in(line) if any(mark in line for mark in _MARKS) else None
                if entry is not None:
                    self.history.passed(self._time_before())
                    self.history.count(entry)
                self._before = line

    def _time_before(self) -> float | None:
        entry = entry_in(self._before)
        return None if entry is None else entry.now


def host_losses(journal: Path, now: float) -> dict[str, int]:
    """Return how often each host was lost in the day before ``now``, in seconds since 1970.

    A journal that cannot be read tells of none.
    """
    lost: list[Entry[HostLost]] = []
    with contextlib.suppress(OSError):
        lines = (line for line in JournalReader(journal).lines() if _HOST_LOST in line)
        lost = of(filter(None, map(entry_in, lines)), HostLost)
    return dict(Counter(entry.event.host for entry in lost if now - entry.time < REMEMBERED_S))
