"""When a job must begin its last save, so that it has ended before its time has.

Theory.  A batch system ends a job at a known moment E, and all that is not on the disk then
is lost.  From the wish to stop to the end of the job pass: the step in flight, the last
save, and the end of all processes.  Step and save are measured; a save beside other jobs
may take twice as long as the last ones did.  So the wish comes at

    E - min(leave + 2 (step + save), half of the job's time)

and a job that has not ended at E - leave is cut short: requeueing it takes some seconds
too, and its newest checkpoint is on the disk.

Invariant: a moment that was due stays due; no later measurement moves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

LEAVE_S = 10.0
"""For the end of all processes, and for one call of the batch system."""

UNMEASURED_S = 15.0
"""What a save and a step take together before any was measured."""

HURRY_S = 300.0
"""So long before the last save a new launch is not worth its start any more."""

_SAFETY = 2.0
_NEWEST_SAVES = 5
_LARGEST_SHARE = 0.5


class Due(IntEnum):
    """What the time asks for."""

    NOTHING = 0
    HURRY = 1
    """Begin nothing that takes long to pay."""
    SAVE = 2
    END = 3


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a job's time; moments are in seconds since 1970."""

    begun_at: float
    ends_at: float
    source: str
    """Who says so."""
    saves: tuple[tuple[float, float], ...] = ()
    """Seconds of the newest saves, and of the steps around them."""
    due: Due = Due.NOTHING

    @property
    def lead_s(self) -> float:
        """The seconds before the end at which the job must begin to stop."""
        longest_s = sum(map(max, zip(*self.saves, strict=True)))
        measured_s = _SAFETY * longest_s if self.saves else UNMEASURED_S
        whole_s = max(0.0, self.ends_at - self.begun_at)
        return min(LEAVE_S + measured_s, _LARGEST_SHARE * whole_s)

    def saved(self, save_s: float, step_s: float) -> Deadline:
        """Return the deadline after a save; the longest of the newest few counts.

        A disk that hung once does not move the end of the job for good.
        """
        return replace(self, saves=(*self.saves, (save_s, step_s))[-_NEWEST_SAVES:])

    def look(self, now: float) -> Deadline:
        """Return the deadline with what is due at ``now``."""
        left_s = self.ends_at - now
        leave_s = min(LEAVE_S, self.lead_s / 2)
        bounds = {Due.END: leave_s, Due.SAVE: self.lead_s, Due.HURRY: self.lead_s + HURRY_S}
        found = next((due for due, bound_s in bounds.items() if left_s <= bound_s), Due.NOTHING)
        return replace(self, due=max(self.due, found))


def earliest(*deadlines: Deadline | None) -> Deadline | None:
    """Return the deadline that comes first, None if there is none."""
    found = [deadline for deadline in deadlines if deadline is not None]
    return min(found, key=lambda deadline: deadline.ends_at, default=None)
