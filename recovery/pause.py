"""Whether a whole job stood still for a while, as its agent sees when it goes on.

A pause of the whole job is nobody's fault: a batch system has suspended it, its machine was
suspended, its cgroup frozen.  An observer that was away sees only that time has passed.  So it
looks at the workers' counters: those that were awake meanwhile have counted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.recovery.world import WorkerId

LEAST_S = 5.0
"""A shorter pause is not worth a word: a busy host may starve a job for seconds."""
_AWAKE = 0.25
"""A worker that has counted for this part of the time was awake."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which no process of a job ran, in seconds of the host's clock."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.began

    def overlaps(self, other: Pause) -> bool:
        """Return whether both are one pause, seen by two observers."""
        return self.began < other.ended and other.began < self.ended


@dataclass(frozen=True, slots=True)
class PauseWatch:
    """The job at the last look; each look makes a new watch."""

    beat_s: float
    """The seconds between two beats of a worker that runs."""
    looked_at: float | None = None
    pause: Pause | None = None
    """The pause that has ended with this look, None if there was none."""
    _counters: Mapping[WorkerId, int] = field(default_factory=dict, repr=False)

    def observe(self, counters: Mapping[WorkerId, int], now: float) -> PauseWatch:
        """Return the watch after a look at the workers' counters at ``now``."""
        began = now if self.looked_at is None else self.looked_at
        beats = _AWAKE * (now - began) / self.beat_s
        was_awake = any(
            count - self._counters[worker] > beats
            for worker, count in counters.items()
            if worker in self._counters
        )
        is_pause = now - began >= LEAST_S and not was_awake
        pause = Pause(began, now) if is_pause else None
        return replace(self, looked_at=now, pause=pause, _counters=dict(counters))
