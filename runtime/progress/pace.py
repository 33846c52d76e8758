"""The speed of a training: steps per second over the last seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_S = 10.0
"""A look that is so old counts 1/e of a new one: smooth enough to read, and soon right again."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, 0 while unknown; each look makes a new pace."""

    per_s: float = 0.0
    _step: int | None = None
    _now: float = 0.0

    def observe(self, step: int, now: float) -> Pace:
        """Return the pace after ``step`` was committed by ``now``, seconds of one clock.

        A run that was taken back to an earlier step is counted anew from there.
        """
        if self._step is None or step < self._step or now < self._now:
            return Pace(self.per_s, step, now)
        passed_s = now - self._now
        if step == self._step or passed_s <= 0:
            return self
        measured = (step - self._step) / passed_s
        share = 1.0 if not self.per_s else 1 - math.exp(-passed_s / MEMORY_S)
        return Pace(self.per_s + share * (measured - self.per_s), step, now)

    def seconds_for(self, steps: int) -> float | None:
        """Return the seconds that so many steps take, None while that is unknown."""
        return steps / self.per_s if self.per_s else None
