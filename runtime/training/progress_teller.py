"""Tells people, through the heartbeat page, how far training has come.

Only the first worker tells, a few times a second.  A look at the metrics in the middle of an
epoch costs up to a millisecond with Keras, and more on a busy host.  So the next look waits until
that is a small part of the time, and no step is slower for being watched.  Until then the words
go on with the metrics of the last look, if they are of the same epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.recovery.cursor import Cursor
from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.progress.step_report import UNKNOWN, StepReport
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.training.training_job import TrainingJob

TELL_EVERY_S = 0.25
_LOOKS_PER_COST = 500
"""At most 0.2 % of the time is spent on it."""
_LONGEST_S = 10.0
"""No look waits longer."""


class ProgressTeller:
    """Writes the progress of one training loop into the page of its worker.

    Call ``committed`` after each commit, on the first worker of the world.
    """

    def __init__(
        self,
        page: HeartbeatPage,
        replica: Replica,
        job: TrainingJob,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._page = page
        self._replica = replica
        self._job = job
        self._clock = clock
        self._due = self._look_due = float("-inf")
        self._has_looked = False
        self._writing = threading.Lock()
        self._untold: tuple[float, Cursor, float | None] | None = None
        """The newest commit, if the page does not have it."""
        self._seen: tuple[int, dict[str, float]] = (0, {})
        """The epoch of the last look, and its metrics."""

    def committed(self, now: float, cursor: Cursor, next_save_at: float | None) -> None:
        """Tell of ``cursor``, if it is the last or the last word is old enough; moments in s."""
        is_last = cursor.step >= self._job.work_plan.steps
        if now < self._due and not is_last:
            self._untold = now, cursor, next_save_at
            return
        self._due = now + TELL_EVERY_S
        if now >= self._look_due or is_last:
            self._look(now, cursor)
        self._untold = now, cursor, next_save_at
        self.tell()

    def tell(self) -> None:
        """Write the newest commit into the page, if it is not there; any thread may call this.

        A thread that beats does, so that the page is right while the next step takes long.
        """
        with self._writing:
            untold, self._untold = self._untold, None
            if untold is not None:
                self._page.tell_progress(self._report(*untold).encode())

    def _look(self, now: float, cursor: Cursor) -> None:
        begun = self._clock()
        self._seen = (self._job.work_plan.epoch_of(cursor), self._metrics(cursor))
        # The first look builds what computes the metrics, and costs far more than the others.
        cost_s = self._clock() - begun if self._has_looked else 0.0
        self._has_looked = True
        self._look_due = now + min(max(TELL_EVERY_S, _LOOKS_PER_COST * cost_s), _LONGEST_S)

    def _report(self, now: float, cursor: Cursor, next_save_at: float | None) -> StepReport:
        plan = self._job.work_plan
        epoch, metrics = self._seen
        return StepReport(
            now=now,
            step=cursor.step,
            steps=UNKNOWN if plan.is_open else plan.steps,
            stage=self._job.stage.number,
            epoch=plan.epoch_of(cursor),
            epochs=plan.last_epoch,
            step_of_epoch=plan.step_of_epoch(cursor),
            steps_per_epoch=UNKNOWN if plan.is_open else len(plan.updates_of_epoch(cursor)),
            metrics=metrics if epoch == plan.epoch_of(cursor) else {},
            verbose=self._job.verbose,
            next_save_step=self._next_save(plan.next_save_step(cursor)),
            next_save_at=next_save_at,
        )

    @staticmethod
    def _next_save(step: int) -> int | None:
        return step if step < NO_END else None  # the end, which nobody knows

    def _metrics(self, cursor: Cursor) -> dict[str, float]:
        """Return the metrics of the epoch so far; none if the user's own cannot be computed yet.

        A metric that fails here fails at the end of the epoch again, and is an error then.
        """
        samples = cursor.ledger.samples
        if not samples:
            return {}
        try:
            found = self._replica.results(cursor.sums, samples)
        except Exception:  # the user's code
            return {}
        return {name: float(value) for name, value in found.items()}
