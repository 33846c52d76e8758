"""What stops a job or asks it for a checkpoint: its time, and signals.

Under a batch system a stop has two kinds.  A *limit* stops the job although it should go on:
the deadline, SIGUSR1 and SIGUSR2.  So the job is requeued.  An *order* (SIGTERM, SIGINT) is
a person's wish, or a preemption: who sends it sees to what follows.  Batch systems warn before
they kill.  So the first SIGTERM after a limit is no second order, which would cut the last
save short.

A batch system may send one *signal* several times: to the process, to its group and to its
session, so to the client and to the head.  So the same signal again within a second is the same
order.  Another signal, or a later one, is a second order, and that means "now".

Theory of the `TimeLimit`.  A batch system ends a job at a known moment E, and all that is not on
the disk then is lost.  From the wish to stop to the end of the job pass: the step in flight, the
last save, and the end of all processes.  Step and save are measured; a save beside other jobs
may take twice as long as the last ones did.  So the wish comes at

    E - min(leave + 2 (step + save), half of the job's time)

and a job that has not ended at E - leave is cut short: requeueing it takes some seconds
too, and its newest checkpoint is on the disk.

Invariant: a moment that was due stays due; no later measurement moves it.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import CheckpointCommitted

STOPS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGXCPU: ExitCode.TERMINATED,
}
LIMITS = (signal.SIGUSR1, signal.SIGUSR2)

_SAME_ORDER_WITHIN_S = {signal.SIGINT: 0.25, signal.SIGTERM: 1.0}
"""People press Ctrl-C twice faster than that only by mistake.

Any other signal asks for the same as before whenever it comes: SIGXCPU comes every second.
"""

OWN_BEFORE_SLURMS = "--deadline, before Slurm's limit"
"""It ends this run alone: a requeue would end everything else in the batch job, too."""

LEAVE_S = 10.0
"""For the end of all processes, and for one call of the batch system."""

UNMEASURED_S = 15.0
"""What a save and a step take together before any was measured."""

_HURRY_S = 300.0
"""So long before the last save a new launch is not worth its start any more."""

_SAFETY = 2.0
_NEWEST_SAVES = 5
_LARGEST_SHARE = 0.5

_BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class TimeDue(IntEnum):
    """What the time asks for."""

    NOTHING = 0
    HURRY = 1
    """Begin nothing that takes long to pay."""
    SAVE = 2
    END = 3


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The end of a job's time; moments are in seconds since 1970."""

    begun_at: float
    ends_at: float
    source: str
    """Who says so."""
    saves: tuple[tuple[float, ...], ...] = ()
    """Seconds of each of the newest saves, and of the step around it."""
    due: TimeDue = TimeDue.NOTHING

    @property
    def lead_s(self) -> float:
        """The seconds before the end at which the job must begin to stop."""
        longest_s = sum(map(max, zip(*self.saves, strict=True)))
        measured_s = _SAFETY * longest_s if self.saves else UNMEASURED_S
        whole_s = max(0.0, self.ends_at - self.begun_at)
        return min(LEAVE_S + measured_s, _LARGEST_SHARE * whole_s)

    def saved(self, save_s: float, step_s: float) -> TimeLimit:
        """Return the deadline after a save; the longest of the newest few counts.

        A disk that hung once does not move the end of the job for good.
        """
        return replace(self, saves=(*self.saves, (save_s, step_s))[-_NEWEST_SAVES:])

    def poll(self, now: float) -> TimeLimit:
        """Return the deadline with what is due at ``now``."""
        left_s = self.ends_at - now
        leave_s = min(LEAVE_S, self.lead_s / 2)
        bounds = {
            TimeDue.END: leave_s,
            TimeDue.SAVE: self.lead_s,
            TimeDue.HURRY: self.lead_s + _HURRY_S,
        }
        found = next((due for due, bound_s in bounds.items() if left_s <= bound_s), TimeDue.NOTHING)
        return replace(self, due=max(self.due, found))


@dataclass(slots=True)
class TimeLimits:
    """The end of a job's time, and what signals mean for it, as its head minds them."""

    deadline: TimeLimit | None = None
    is_batch: bool = False
    """Whether the job runs in a batch system, where more signals stop it."""
    orders: int = 0
    """How many signals have asked for the end since the job began."""
    hit_limit: bool = False
    """Whether the job was stopped by a limit although it should go on."""
    booted_at: float = _BOOTED_AT
    """When the host has booted, by its clock as the job began: setting that moves no deadline."""

    @property
    def now(self) -> float:
        """Seconds since 1970, by that clock."""
        return self.booted_at + time.clock_gettime(time.CLOCK_BOOTTIME)

    @property
    def stops(self) -> Mapping[signal.Signals, ExitCode]:
        """The signals that stop the job, each with the exit code of a job without checkpoint."""
        if not self.is_batch:
            return STOPS
        return STOPS | dict.fromkeys(LIMITS, ExitCode.STOPPED_EARLY)

    @property
    def words(self) -> str:
        """When the time ends, "" if nobody says."""
        if self.deadline is None:
            return ""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.deadline.ends_at))
        return f"time until {at} ({self.deadline.source})"

    def saved(self, committed: CheckpointCommitted) -> None:
        """Take note of how long a save and the steps around it took."""
        if self.deadline is not None and committed.seconds is not None:
            self.deadline = self.deadline.saved(committed.seconds, committed.step_s)

    def poll(self, now: float) -> TimeDue:
        """Return what has become due since the last poll, at ``now`` in seconds since 1970."""
        if self.deadline is None:
            return TimeDue.NOTHING
        before, self.deadline = self.deadline.due, self.deadline.poll(now)
        if self.deadline.due is before:
            return TimeDue.NOTHING
        if self.deadline.due >= TimeDue.SAVE and self.deadline.source != OWN_BEFORE_SLURMS:
            self.hit_limit = self.hit_limit or not self.orders
        return self.deadline.due

    def repeats(self, number: signal.Signals, *, is_stopping: bool, now: float) -> bool:
        """Take note of a signal to stop; return whether it only repeats a limit that was hit."""
        if not self.is_batch:
            return False
        if number in LIMITS:
            self.hit_limit = self.hit_limit or not self.orders
            return is_stopping
        self.orders += 1
        is_first_after_limit = self.hit_limit and self.orders == 1
        if self.deadline is None or now < self.deadline.ends_at:
            self.hit_limit = False  # cancelled, or preempted: not ours to bring back
        return is_first_after_limit and is_stopping and number != signal.SIGINT


class HeardSignals:
    """The signals that a job has heard, of its head or of its client, and when."""

    def __init__(
        self, stops: Collection[signal.Signals], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stops = stops
        self._clock = clock
        self._heard_at: dict[signal.Signals, float] = {}

    def new_in(self, numbers: Iterable[int]) -> list[signal.Signals]:
        """Return the signals without those that repeat an order to stop, by their numbers."""
        now = self._clock()
        received = map(signal.Signals, sorted(set(numbers)))
        return [one for one in received if one not in self._stops or not self._is_again(one, now)]

    def _is_again(self, received: signal.Signals, now: float) -> bool:
        before = self._heard_at.get(received)
        self._heard_at.setdefault(received, now)
        return before is not None and now - before < _SAME_ORDER_WITHIN_S.get(received, math.inf)
