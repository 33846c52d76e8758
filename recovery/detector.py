"""Who is silent, what has stalled, who is overdue: one detector with three subjects.

A worker counts; an observer looks at the counters now and then.  What looks the same at two looks
in a row has stood still between them.  Three limits say how long that may last:

* *silent*: a counter that stands still, of a worker, a helper or a peer.  Its process is dead;
* *stalled*: all workers wait for each other, or for the disk, and none comes on (`fencing`);
* *overdue*: one worker does not come on, and all others wait for it (`stall`).

Two things make the verdicts safe.  Only the observer's clock is used.  And an observer that was
away (stopped, starved, on a suspended machine) must not accuse those that it failed to look at:
each look adds at most a quarter of the limit, even if the last one was long ago.

A pause of the whole job is nobody's fault: a batch system has suspended it, its machine was
suspended, its cgroup frozen.  An observer that was away sees only that time has passed.  So it
looks at the workers' counters: those that were awake meanwhile have counted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from holdfast.recovery.world import WorkerId

LOOKS_PER_LIMIT = 4

Key = TypeVar("Key")

_LEAST_S = 5.0
"""A shorter pause is not worth a word: a busy host may starve a job for seconds."""
_AWAKE = 0.25
"""A worker that has counted for this part of the time was awake."""


def counted_s(looked_at: float | None, now: float, most_s: float) -> float:
    """Return the seconds that a look at ``now`` adds: those since the last look, or ``most_s``.

    So an observer that was away counts hardly anything of the time in which it saw nothing.
    """
    if looked_at is None:
        return 0.0
    if now < looked_at:
        raise ValueError(f"time ran backwards, from {looked_at} to {now}")
    return min(now - looked_at, most_s)


@dataclass(frozen=True, slots=True)
class ChangeDetector(Generic[Key]):
    """For how long each of several things has looked the same; each look makes a new one.

    ``limit_s`` is the shortest silence that counts.  Look at least four times within it, or
    verdicts come later.
    """

    limit_s: float
    looked_at: float | None = None
    seconds: Mapping[Key, float] = field(default_factory=dict)
    """How long each thing has stood still that was there at the last look."""
    _views: Mapping[Key, object] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse a limit that nobody could keep."""
        if not self.limit_s > 0:
            raise ValueError(f"some silence must be allowed, got {self.limit_s} s")

    def observe(self, views: Mapping[Key, object], now: float) -> ChangeDetector[Key]:
        """Return the state after a look at all things at ``now``; what is new begins to count."""
        passed_s = counted_s(self.looked_at, now, self.limit_s / LOOKS_PER_LIMIT)
        seconds = {
            key: self.seconds[key] + passed_s
            if key in self._views and self._views[key] == view
            else 0.0
            for key, view in views.items()
        }
        return ChangeDetector(self.limit_s, now, seconds, dict(views))

    @property
    def beyond(self) -> dict[Key, float]:
        """The things that have stood still for longer than the limit, with the seconds of it."""
        return {key: still_s for key, still_s in self.seconds.items() if still_s > self.limit_s}


@dataclass(frozen=True, slots=True)
class PauseWatch:
    """The job at the last look; each look makes a new watch."""

    beat_s: float
    """The seconds between two beats of a worker that runs."""
    looked_at: float | None = None
    pause_s: float = 0.0
    """The seconds of the pause that has ended with this look, 0 if there was none."""
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
        is_pause = now - began >= _LEAST_S and not was_awake
        pause_s = now - began if is_pause else 0.0
        return replace(self, looked_at=now, pause_s=pause_s, _counters=dict(counters))
