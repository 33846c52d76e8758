"""When it pays to let a launch of more workers take the place of one that has lost some.

A launch in place of another costs a pause of the training.  What it costs is measured each time;
the first time a slow start is assumed.  It gains the time that the missing workers would save until
the end.  What a step takes is measured for each number of workers, from the first look at their
world to its newest step.  Of a number that was never seen, work is taken to be shared evenly: such
a hope is paid for once.  A launch pays if it gains `LEAST_GAIN` times its cost.

Hysteresis: after a launch nothing is begun for some pauses' time, so pauses cost a twentieth at
most.  A loss within that time, or a launch that could not be prepared, doubles the time: a place
that kills its workers again and again is filled seldom.  The time is short again after a launch
that has outlived it.  A size that a user has asked for needs not pay.  If it cannot be prepared, it
is tried again after a second, and then ever later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

LEAST_GAIN = 2.0
FIRST_COST_S = 3.0
QUIET_COSTS = 20.0
MOST_QUIET_S = 3600.0
LONGEST_RETRY_S = 60.0
LEAST_SEEN_S = 1.0
"""What a step takes is known after so long."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How far a training is at ``now``; ``steps`` are all that it plans, 0 if that is unknown."""

    step: int
    steps: int
    now: float


@dataclass(frozen=True, slots=True)
class Regrowth:
    """What is known of launches in place of others; each event and each look makes a new value."""

    cost_s: float = FIRST_COST_S
    quiet_factor: float = 1.0
    quiet_until: float = 0.0
    steps_s: Mapping[int, float] = field(default_factory=dict)
    """What a step takes, by the number of workers."""
    since: Pace | None = None
    """The first look at this world."""
    newest: Pace | None = None
    """The look that has seen the newest step."""
    asked_at: float | None = None
    """When a training was asked to make room, until the next launch has come further."""
    failures: int = 0
    """How many launches in a row could not be prepared."""
    retry_at: float = 0.0
    """When another one may be, if a user wants it."""
    is_back: bool = False
    """Whether the world of that launch has formed."""

    def formed(self, now: float, *, is_loss: bool) -> Regrowth:
        """Return what is known when a world has formed; a loss may come too soon."""
        known = self._quiet(now, 2 * self.quiet_factor) if is_loss and self._is_quiet(now) else self
        is_back = known.asked_at is not None and not is_loss
        return replace(known, since=None, newest=None, is_back=is_back)

    def made_room(self, now: float) -> Regrowth:
        """Return what is known when a training was asked to make room for a launch."""
        factor = self.quiet_factor if self._is_quiet(now) else 1.0
        return replace(self._quiet(now, factor), asked_at=now, is_back=False, failures=0)

    def failed(self, now: float) -> Regrowth:
        """Return what is known when a launch could not be prepared."""
        retry_at = now + min(LONGEST_RETRY_S, 2.0 ** min(self.failures, 6))
        known = self._quiet(now, 2 * self.quiet_factor)
        return replace(known, failures=self.failures + 1, retry_at=retry_at)

    def seen(self, pace: Pace, workers: int) -> Regrowth:
        """Return what is known after a look at the training of so many workers."""
        since, newest = self.since, self.newest
        if since is None or newest is None or pace.step < newest.step:
            return replace(self, since=pace, newest=pace)
        if pace.step == newest.step:
            return self
        known = replace(self, newest=pace)
        if self.asked_at is not None and self.is_back:
            known = replace(known, cost_s=pace.now - self.asked_at, asked_at=None)
        if pace.now - since.now >= LEAST_SEEN_S:
            step_s = (pace.now - since.now) / (pace.step - since.step)
            known = replace(known, steps_s={**self.steps_s, workers: step_s})
        return known

    def pays(self, pace: Pace, workers: int, possible: int) -> bool:
        """Return whether a launch of ``possible`` workers is to take the place of ``workers``."""
        step_s = self.steps_s.get(workers)
        is_known = self.newest is not None and self.newest != self.since and step_s is not None
        if possible <= workers or self._is_quiet(pace.now) or not is_known:
            return False
        assert step_s is not None
        gain_s = step_s - self.steps_s.get(possible, step_s * workers / possible)
        left = max(0, pace.steps - pace.step) if pace.steps else float("inf")
        return self.asked_at is None and gain_s > 0 and left * gain_s >= LEAST_GAIN * self.cost_s

    def _is_quiet(self, now: float) -> bool:
        return now < self.quiet_until

    def _quiet(self, now: float, factor: float) -> Regrowth:
        quiet_s = min(MOST_QUIET_S, factor * QUIET_COSTS * self.cost_s)
        return replace(self, quiet_factor=factor, quiet_until=now + quiet_s)
