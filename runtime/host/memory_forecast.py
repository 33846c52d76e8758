"""When a growing use meets its limit, and when people are to be told; pure.

Memory of a job jumps (a repair, a first save), swings (garbage, validation) and settles.  Only
a leak grows on and on.  So the rate is the smallest of three slopes: those of the window and
of its halves.  A jump lies in one half and leaves the other one flat.  Each slope is the median of
the slopes of all pairs (Theil 1950, Sen 1968), which a few wild samples do not change.  A growth
counts if

* it is certain: of all pairs of samples nearly all rise (Mann 1945, Kendall 1975);
* it goes beyond the highest use before the window, which a swing does not;
* the limit lies within eight windows, as nobody should extrapolate farther.

Two windows look at once: one of half a minute for what is fast, and one of ten minutes, of the
peaks in 20 seconds each, for what is slow.

Invariant: each level of nearness is told once.  It is told again only after the use has been far
from the limit, or has not grown, for five minutes.  Time is passed in.

The forecasts of one set of workers, and which of them has grown.

Before a launch trains, and after a death, memory changes for good reasons.  So a set of workers
is left alone until all of it has trained for some steps, and each other set begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Protocol

from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.system.processes import resident_bytes
from holdfast.runtime.system.usage import Resource, Usage

LEVELS_S = (15.0, 60.0, 240.0, 900.0)
"""The times to the limit at which it is told, each about four times nearer than the next."""

WORTH_A_LOOK = 0.6
"""Below this part of the limit nothing is told: a job that begins to train grows, too."""

_FEWEST = 8
_BEYOND_CHANCE = 3.0
"""Standard deviations of the test by Mann and Kendall, which needs eight samples for as many."""
_WINDOWS_AHEAD = 8.0
_CALM_S = 300.0
_FAR = 4.0

_Sample = tuple[float, float]
"""Time and use."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A use that meets its limit in ``left_s`` seconds if it grows on."""

    per_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class _Window:
    """The peaks of the last ``size`` spans of ``spacing_s``, and the peak before them."""

    spacing_s: float
    size: int
    samples: tuple[_Sample, ...] = ()
    highest_before: float = 0.0

    def add(self, now: float, used: float) -> _Window:
        """Return the window with one more sample, or with a higher last one."""
        if self.samples and now - self.samples[-1][0] < self.spacing_s:
            at, peak = self.samples[-1]
            return replace(self, samples=(*self.samples[:-1], (at, max(peak, used))))
        samples = (*self.samples, (now, used))
        dropped, kept = samples[: -self.size], samples[-self.size :]
        highest = max((self.highest_before, *(peak for _, peak in dropped)))
        return replace(self, samples=kept, highest_before=highest)

    def growth(self, limit: float) -> Growth | None:
        """Return the growth towards ``limit``; None if there is none to speak of."""
        if len(self.samples) < _FEWEST or self.samples[-1][1] <= self.highest_before:
            return None
        per_s = _steady_slope(self.samples)
        if per_s <= 0:
            return None
        left_s = max(0.0, limit - self.samples[-1][1]) / per_s
        span_s = self.samples[-1][0] - self.samples[0][0]
        return Growth(per_s, left_s) if left_s <= _WINDOWS_AHEAD * span_s else None


@dataclass(frozen=True, slots=True)
class Forecast:
    """One use over time; each observation makes a new forecast.

    ``growth`` is that of the last observation.  ``is_news`` is whether it is to be told now.
    """

    growth: Growth | None = None
    is_news: bool = False
    _windows: tuple[_Window, ...] = (_Window(1.5, 16), _Window(20.0, 30))
    _told_s: float = math.inf
    _near_at: float = -math.inf

    def observe(self, used: float, limit: float, now: float) -> Forecast:
        """Return the forecast after ``used`` of ``limit`` was seen at ``now``."""
        windows = tuple(window.add(now, used) for window in self._windows)
        looked_at = windows if used >= WORTH_A_LOOK * limit else ()
        found = [growth for window in looked_at if (growth := window.growth(limit))]
        growth = min(found, key=lambda found: found.left_s, default=None)
        return replace(self, growth=growth, _windows=windows)._tell(now)

    def _tell(self, now: float) -> Forecast:
        """Decide whether the growth has come to a level that was not told yet."""
        left_s = math.inf if self.growth is None else self.growth.left_s
        told_s, near_at = self._told_s, self._near_at
        if left_s <= _FAR * told_s:
            near_at = now
        elif now - near_at > _CALM_S:
            told_s = math.inf
        level = min((level for level in LEVELS_S if left_s <= level), default=math.inf)
        is_news = level < told_s
        return replace(
            self, is_news=is_news, _told_s=min(level, told_s), _near_at=now if is_news else near_at
        )


def _steady_slope(samples: Sequence[_Sample]) -> float:
    """Return use per second; 0 if it is not steady, or may be chance."""
    if _trend_score(samples) <= _BEYOND_CHANCE:
        return 0.0
    half = len(samples) // 2
    return max(0.0, min(map(_slope, (samples, samples[:half], samples[half:]))))


def _trend_score(samples: Sequence[_Sample]) -> float:
    """Return by how many standard deviations more pairs rise than fall (Mann, Kendall)."""
    number = len(samples)
    balance = sum(
        (later > earlier) - (later < earlier)
        for (_, earlier), (_, later) in combinations(samples, 2)
    )
    return balance / math.sqrt(number * (number - 1) * (2 * number + 5) / 18)


def _slope(samples: Sequence[_Sample]) -> float:
    """Return the median slope of all pairs (Theil 1950, Sen 1968)."""
    return median(
        (later - earlier) / (then - since)
        for (since, earlier), (then, later) in combinations(samples, 2)
        if then > since
    )


_STEPS_TO_SETTLE = 2
"""The first steps of a launch take memory that stays."""

_WORTH_NAMING = 0.05
"""A worker is named if it has grown by that part of the memory of all workers."""

_BEFORE_TRAINING = (Phase.STARTING, Phase.JOINING, Phase.RESTORING, Phase.COMPILING)


class Watched(Protocol):
    """What is looked at of a worker."""

    @property
    def worker(self) -> int:
        """Its id."""

    @property
    def pid(self) -> int | None:
        """Its process, if it has one."""

    @property
    def page(self) -> HeartbeatPage:
        """Its step and phase."""


class Trends:
    """The forecasts of one set of workers, from its first steps on."""

    def __init__(self) -> None:
        self._pids: frozenset[int | None] = frozenset()
        self._first_step: int | None = None
        self._forecasts: dict[tuple[Resource, str], Forecast] = {}
        self._resident_before: dict[int, int] = {}

    def is_settled(self, living: Sequence[Watched]) -> bool:
        """Return whether all train for some steps; another set of workers begins anew."""
        pids = frozenset(watched.pid for watched in living)
        if pids != self._pids:
            self._pids, self._first_step = pids, None
            self._forecasts.clear()
            self._resident_before.clear()
        if any(watched.page.phase in _BEFORE_TRAINING for watched in living):
            return False
        step = min(watched.page.step for watched in living)
        if self._first_step is None:
            self._first_step = step
        is_settled = step >= self._first_step + _STEPS_TO_SETTLE
        if is_settled and not self._resident_before:
            self._resident_before = _resident(living)
        return is_settled

    def observe(self, usages: Iterable[Usage], now: float) -> list[tuple[Usage, Forecast]]:
        """Return the uses of which a growth is to be told."""
        told = []
        for usage in usages:
            key = (usage.resource, usage.place)
            forecast = self._forecasts.get(key, Forecast()).observe(usage.used, usage.limit, now)
            self._forecasts[key] = forecast
            if forecast.is_news:
                told.append((usage, forecast))
        return told

    def largest(self, living: Sequence[Watched]) -> tuple[int, int] | None:
        """Return the worker that has grown most since its first steps, and its resident bytes."""
        resident = _resident(living)
        grown = {
            worker: size - self._resident_before.get(worker, size)
            for worker, size in resident.items()
        }
        worker = max(grown, key=grown.__getitem__, default=None)
        if worker is None or grown[worker] < _WORTH_NAMING * sum(resident.values()):
            return None
        return worker, resident[worker]


def _resident(living: Sequence[Watched]) -> dict[int, int]:
    sizes = {w.worker: resident_bytes(w.pid) for w in living if w.pid is not None}
    return {worker: size for worker, size in sizes.items() if size is not None}
