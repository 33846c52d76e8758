"""The clock that tells when a checkpoint is due, and measures the cost of the last ones.

Only the clock of rank 0 counts: it makes rank 0 wish for a checkpoint in its next vote,
and all learn that from the outcome.  All workers keep a clock, because any of them may
become rank 0.  Time is passed in.

The cost of a save is the training time that it took.  It is the time of the steps from
its beginning to its end, minus the usual time of as many steps.  So it holds the copy of
the state, for which training waits, and the slowdown by the writing in the background.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

from holdfast.recovery.schedule import (
    NOT_MEASURED,
    Auto,
    FailureHistory,
    Schedule,
    Writing,
    interval_s,
)
from holdfast.runtime.run.checkpoint_events import SaveInterval

_USUAL_STEPS = 64
_LATEST_SAVES = 5


class SaveClock:
    """Times the steps and saves of one worker's training loop.

    Args:
        schedule: the job's schedule of checkpoints.
        history: the run's failures before this launch.
        tell: takes the journal's event of each new interval.
    """

    def __init__(
        self, schedule: Schedule, history: FailureHistory, tell: Callable[[SaveInterval], None]
    ) -> None:
        self._schedule = schedule
        self._history = history
        self._tell = tell
        self._costs: deque[float] = deque(maxlen=_LATEST_SAVES)
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._during: list[float] | None = None
        self._started: float | None = None
        self._since = 0.0
        self._nbytes = 0
        self._writing = NOT_MEASURED
        self._last: float | None = None
        self._interval = interval_s(schedule, (), history)
        self.is_idle = self._interval is None
        """Whether the cursor alone decides, so that nothing needs to be timed."""

    @property
    def next_at(self) -> float | None:
        """The moment of the next save, None if it is unknown: a save is under way, or no clock."""
        if self._interval is None or self._started is None or self._during is not None:
            return None
        return self._since + self._interval

    def is_due(self, now: float) -> bool:
        """Return whether an interval has passed since the last save was begun."""
        return self.next_at is not None and now >= self.next_at

    def committed(self, now: float, *, is_step: bool, is_saving: bool) -> None:
        """Take note of a committed transaction, and whether a save is still in flight."""
        if self.is_idle:
            return
        if self._started is None:
            self._started = self._since = now
        if self._last is not None and is_step:
            (self._usual if self._during is None else self._during).append(now - self._last)
        self._last = now
        if self._during is not None and not is_saving:
            self._saved(now)

    def began(self, now: float, nbytes: int = 0) -> None:
        """Take note that a save of ``nbytes`` has begun, at anyone's request."""
        self._since = now
        self._nbytes = nbytes
        self._during = []

    def world_changed(self) -> None:
        """Drop the current timing: a repair has interrupted the steps and abandoned the save."""
        self._last = None
        self._during = None

    def _saved(self, now: float) -> None:
        """Record the cost of the save, if the usual time of its steps is known."""
        during, self._during = self._during or [], None
        self._writing = Writing(now - self._since, self._nbytes)
        if self._usual and during:
            self._costs.append(max(0.0, sum(during) - len(during) * median(self._usual)))
        if isinstance(self._schedule, Auto):
            self._decide(now)

    def _decide(self, now: float) -> None:
        """Compute the interval anew from the costs of saves and the failures so far."""
        seconds = self._history.seconds + now - (self._started or now)
        history = FailureHistory(seconds, self._history.failures)
        self._interval = interval_s(self._schedule, self._costs, history, self._writing)
        self._tell(
            SaveInterval(
                seconds=self._interval,
                costs_s=tuple(round(cost, 6) for cost in self._costs),
                failures=history.failures,
                mean_time_between_failures_s=round(history.mean_time_between_failures_s, 3),
            )
        )
