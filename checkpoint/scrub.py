"""Reading old checkpoints again, one at a time, so that damage is found before it is needed.

Reading is apart from acting, because it is slow and changes nothing: any thread may call
`Scrubber.read`.  `Scrubber.conclude` moves a step aside, so it belongs to the thread that
commits and prunes.  It reads a damaged step once more before it touches it: the step may
have been saved again, or removed, meanwhile.

A damaged step is mended if possible.  Else it is moved, but only while another step is
known to verify.  The last step keeps its name: its sound parts are worth more than a tidy
directory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable, StorageFailed
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks, read_back
from holdfast.checkpoint.names import next_bad_name, step_name
from holdfast.checkpoint.repair import MendResult

DEFAULT_INTERVAL_S = 3600.0

Mend: TypeAlias = Callable[[int], MendResult | None]
"""Makes a damaged step whole; returns None if it cannot."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of reading a step again; no reason means that every byte verifies."""

    step: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ScrubFailure:
    """A step that does not verify any more, its new name, and whether it is whole again."""

    step: int
    reason: str
    moved_to: str | None = None
    is_mended: bool = False

    def __str__(self) -> str:
        if self.is_mended:
            fate = "it was mended; look at the disk"
        elif self.moved_to is None:
            fate = "it stays where it is; look at the disk"
        else:
            fate = f"it was moved to {self.moved_to}; look at the disk"
        return f"checkpoint step {self.step} does not verify any more: {self.reason}; {fate}"


def next_step(steps: Iterable[int], time_of: Callable[[int], float | None]) -> int | None:
    """Return the oldest step that was never verified, else the step verified longest ago."""

    def age_rank(step: int) -> tuple[bool, float, int]:
        time = time_of(step)
        return time is not None, time or 0.0, step

    return min(steps, key=age_rank, default=None)


def _never(_step: int) -> None:
    """Mend nothing: there is no second holder."""


class Scrubber:
    """Reads one committed step of a run every ``interval_s`` seconds; 0 switches it off."""

    def __init__(
        self,
        steps: OwnSteps,
        marks: ReadMarks,
        generation: int,
        interval_s: float = DEFAULT_INTERVAL_S,
        mend: Mend = _never,
    ) -> None:
        self._steps = steps
        self._store = steps.store
        self._marks = marks
        self._generation = generation
        self._interval_s = interval_s
        self._mend = mend
        self._last: float | None = None
        self._tried: dict[int, float] = {}
        """When each step was chosen last: one that cannot be read must not be chosen for ever."""
        self._met: dict[int, float] = {}
        """When each step was first there to choose.  A new one waits behind all others: jobs
        may save more often than they read, and old steps rot as well."""

    def due(self, now: float) -> bool:
        """Return whether it is time to read a step; the first time comes after an interval."""
        if self._last is None:
            self._last = now
        return self._interval_s > 0 and now - self._last >= self._interval_s

    def choose(self, now: float) -> int | None:
        """Return the step to read now, None if there is none, and start the next interval."""
        self._last = now
        try:
            steps = self._steps.newest_first()
        except StorageFailed:
            return None
        since = now if self._met else -math.inf  # nobody knows when those of before were read
        self._met = {step: self._met.get(step, since) for step in steps}
        step = next_step(steps, self._looked_at)
        if step is not None:
            self._tried[step] = now
        return step

    def _looked_at(self, step: int) -> float | None:
        """Return when a step was verified or chosen last, or else when it was met."""
        times = (self._marks.time_of(step), self._tried.get(step), self._met.get(step))
        return max((time for time in times if time is not None), default=None)

    def read(self, step: int) -> Reading:
        """Read all of ``step``; changes nothing, so it may run beside everything else."""
        try:
            read_back(self._store, step)
        except CheckpointInvalid as error:
            return Reading(step, error.reason)
        return Reading(step)

    def conclude(self, finding: Reading, now: float) -> ScrubFailure | None:
        """Mark, mend or move the step of ``finding``; returns the failure to report, or None."""
        if finding.reason is None:
            self._marks.mark(finding.step, now)
            return None
        directory = self._store.directory / step_name(finding.step)
        found = self._store.disk.identity(directory)
        try:
            if finding.step not in self._steps.newest_first():
                return None
            read_back(self._store, finding.step)
        except CheckpointUnreadable as error:
            # A bad block gives the same error, so a mend is tried here as well.
            unread = ScrubFailure(finding.step, error.reason)
            return self._mended(finding.step, error.reason, now) or unread
        except CheckpointInvalid as error:
            mended = self._mended(finding.step, error.reason, now)
            return mended or self._set_aside(Reading(finding.step, error.reason), found, now)
        except StorageFailed as failure:
            return ScrubFailure(finding.step, str(failure))
        self._marks.mark(finding.step, now)
        return None

    def run_one(self, now: float) -> ScrubFailure | None:
        """Read the step that was verified longest ago, and conclude from the reading."""
        step = self.choose(now)
        return None if step is None else self.conclude(self.read(step), now)

    def _mended(self, step: int, reason: str, now: float) -> ScrubFailure | None:
        """Make a damaged step whole; return None if it cannot be."""
        result = self._mend(step)
        if result is None:
            return None
        if not result.faults:  # the disk errs now and then: the next read may verify
            return ScrubFailure(step, reason)
        self._marks.mark(step, now)
        return ScrubFailure(step, reason, result.bad_name, is_mended=True)

    def _set_aside(
        self, damage: Reading, found: tuple[int, int] | None, now: float
    ) -> ScrubFailure | None:
        """Move a damaged step out of sight, if a step that verifies is left without it.

        Others are read for minutes.  A step that is not the one ``found`` any more was saved
        again meanwhile: it stays, and there is nothing to report.
        """
        step, reason = damage.step, damage.reason or ""
        self._marks.mark_damaged(step)
        directory, disk = self._store.directory, self._store.disk
        name = None
        try:
            others = [other for other in self._steps.newest_first() if other != step]
            if not any(self._verifies(other, now) for other in others):
                return ScrubFailure(step, reason)
            bad_name = next_bad_name(step, self._generation, self._store.names())
            if disk.identity(directory / step_name(step)) != found:
                self._marks.forget(step)
                return None
            disk.rename(directory / step_name(step), directory / bad_name)
            name = bad_name
            disk.fsync_directory(directory)
        except StorageFailed as failure:
            return ScrubFailure(step, f"{reason} ({failure})", name)
        return ScrubFailure(step, reason, name)

    def _verifies(self, step: int, now: float) -> bool:
        # A step that was read before is read again: disks fail in more than one place.
        return self._marks.verify(self._store, step, now) is None
