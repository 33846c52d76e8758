"""When a checkpoint is due: every n steps, every t seconds, at each epoch's end, or ``auto``.

Steps and epochs are functions of the cursor, so all workers find them due alike
(`recovery.work_plan`).  Seconds are not: clocks differ.  So a clock only makes a
worker *wish* for a checkpoint, in a vote whose outcome reaches all.

Theory of ``auto``.  A save costs C seconds of training.  A failure that leaves no worker
costs the training since the last save: half an interval T on average.  With one such
failure every M seconds, the share of time lost is C/T + T/2M.  It is least at
T = sqrt(2 C M) (Young 1974; Daly's higher orders change nothing while C is much smaller
than M).  The share C/T alone may not exceed 3.5 %, even if the job fails often (the rule
of CheckFreq, FAST 2021).  M is a guess, and wrong by far where a job fails for the first
time in its first minute.  So T never exceeds C/0.1 %: nobody notices that share, and the
first failure then costs seconds instead of a minute.

C is what training loses.  A save in the background may cost it nothing, and yet keep the
disks busy, which other jobs share.  So writing may take at most a tenth of the time, and
100 MB/s on average.  Courtesy ends where a job could no longer come on: it never makes T
longer than M/4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from holdfast.recovery.errors import WrongText

LARGEST_SHARE = 0.035
"""The largest share of the time that saving may take under ``auto``."""

UNNOTICED_SHARE = 0.001
"""A share of the time that saving may always take under ``auto``."""

PRIOR_S = 24 * 3600.0
"""The assumption before any failure: the job has run for a day and failed once."""

_PRIOR_WEIGHT = 0.1
"""What that failure counts once a real one was seen: failures come in bursts."""

FIRST_SAVE_S = 5.0
"""The time of the first save of ``auto``: it measures C, and shows early if saves work."""

LARGEST_DUTY = 0.1
"""The largest share of the time in which saves of ``auto`` are being written."""

LARGEST_BYTES_PER_S = 100e6
"""The most that ``auto`` writes on average: a tenth of the 1 GB/s that one client of a shared
file system gets on a good day, and a terabyte to an SSD in three hours."""

LARGEST_COURTESY = 0.25
"""The largest part of the mean time between failures that courtesy may wait for."""

LEAST_COST_S = 0.01
"""A lower cost than this cannot be told from the noise of a step."""

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_UNITS)})")
_CLOCK = re.compile(r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})")
_HELP = 'give a number of steps (100), a time ("90s", "10min", "1:30:00"), "epoch" or "auto"'


@dataclass(frozen=True, slots=True)
class EverySteps:
    """A checkpoint is due at every multiple of ``steps``."""

    steps: int


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """A checkpoint is due ``seconds`` after the last one was begun."""

    seconds: float


@dataclass(frozen=True, slots=True)
class EachEpoch:
    """A checkpoint is due at the end of each epoch."""


@dataclass(frozen=True, slots=True)
class Auto:
    """A checkpoint is due at the interval that loses the least time to saves and failures."""


Schedule: TypeAlias = EverySteps | EverySeconds | EachEpoch | Auto


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """The seconds that a run was trained, and how often it lost all of its workers meanwhile.

    ``rejected`` are the steps that a restore has rejected, neither restored nor saved since.
    """

    seconds: float = 0.0
    failures: int = 0
    rejected: tuple[int, ...] = ()

    @property
    def mean_time_between_failures_s(self) -> float:
        """The estimate: it begins with one failure a day and follows the run's own history.

        It is the inverse of the mean rate of a Poisson process, under a gamma prior of one
        failure in ``PRIOR_S``.  The prior's failure stays, so the estimate is never infinite.
        After a real failure it weighs little.  Failures of a machine come in bursts: right
        after one the next is more likely (Schroeder and Gibson 2006, Weibull shapes of 0.7
        to 0.8).
        """
        weight = _PRIOR_WEIGHT if self.failures else 1.0
        return (self.seconds + weight * PRIOR_S) / (self.failures + weight)


@dataclass(frozen=True, slots=True)
class Writing:
    """What one save asks of the disks: seconds from its first byte to its last sync, and bytes.

    Zero is for what is not known yet.
    """

    seconds: float = 0.0
    nbytes: int = 0

    @property
    def courteous_interval_s(self) -> float:
        """The shortest time between two saves that leaves the disks to others as well."""
        return max(self.seconds / LARGEST_DUTY, self.nbytes / LARGEST_BYTES_PER_S)


NOT_MEASURED = Writing()


def parse_schedule(value: object) -> Schedule:
    """Return the schedule for an int (steps) or a text such as ``10min`` or ``auto``.

    Raises:
        WrongText: the value is no schedule; the message lists the valid forms.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _every_steps(value)
    if not isinstance(value, str):
        raise WrongText(f"{value!r} is not a valid time to save: {_HELP}")
    text = value.strip().lower()
    if text == "auto":
        return Auto()
    if text == "epoch":
        return EachEpoch()
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return _every_steps(int(text))
    return _every_seconds(text, value)


def _every_steps(steps: int) -> EverySteps:
    if steps < 1:
        raise WrongText(f"steps between checkpoints must be at least 1, got {steps}")
    return EverySteps(steps)


def _every_seconds(text: str, value: str) -> EverySeconds:
    seconds = seconds_of(text)
    if seconds is None:
        raise WrongText(f"{value!r} is not a valid time to save: {_HELP}")
    if not 0 < seconds < math.inf:
        raise WrongText(f"the time between checkpoints must be positive, got {value!r}")
    return EverySeconds(seconds)


def seconds_of(text: str) -> float | None:
    """Return the seconds of ``90min`` or ``1-12:00:00``, None for any other text."""
    match = _DURATION.fullmatch(text)
    return clock_s(text) if match is None else float(match[1]) * _UNITS[match[2]]


def clock_s(text: str) -> float | None:
    """Return the seconds of ``[days-][hours:]minutes:seconds``, None for any other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def best_interval_s(cost_s: float, mean_time_between_failures_s: float) -> float:
    """Return the seconds between saves that lose the least time; saves take 0.1 % to 3.5 %."""
    cost_s = max(cost_s, LEAST_COST_S)
    best_s = math.sqrt(2 * cost_s * mean_time_between_failures_s)
    return min(max(best_s, cost_s / LARGEST_SHARE), cost_s / UNNOTICED_SHARE)


def interval_s(
    schedule: Schedule,
    costs_s: Sequence[float],
    history: FailureHistory,
    writing: Writing = NOT_MEASURED,
) -> float | None:
    """Return the seconds from one save to the next, None if the cursor decides.

    ``costs_s`` are the seconds of training that the latest saves took; their median counts.
    ``writing`` is what the latest save asked of the disks.
    """
    match schedule:
        case EverySeconds(seconds):
            return seconds
        case Auto():
            if not costs_s:
                return FIRST_SAVE_S
            return auto_interval_s(median(costs_s), history, writing)
        case _:
            return None


def auto_interval_s(cost_s: float, history: FailureHistory, writing: Writing) -> float:
    """Return the seconds between saves that lose the least time and leave the disks to others."""
    mean_s = history.mean_time_between_failures_s
    courtesy_s = min(writing.courteous_interval_s, LARGEST_COURTESY * mean_s)
    return max(best_interval_s(cost_s, mean_s), courtesy_s)
