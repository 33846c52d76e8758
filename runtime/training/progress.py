"""The committed progress: the cursor with the metrics from its sums, and what people hear of it.

Only the first worker tells people, a few times a second, through its status.  A look at the
metrics in the middle of an epoch costs up to a millisecond with Keras, and more on a busy host.  So
the next look waits until that is a small part of the time, and no step is slower for being watched.
Until then the words go on with the metrics of the last look, if they are of the same epoch.

Repairs of the world are no progress: `RepairCount` says when it is given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.retention import Best
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.work_plan import NO_END, Work
from holdfast.runtime.errors import ProgramError, RecoveryImpossible, WorldLost
from holdfast.runtime.model.replica import (
    Replica,
    Sums,
    epoch_sums,
    first_cursor,
    hold_metrics,
    pass_sums,
)
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.progress import UNKNOWN, StepReport
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.callback_host import Commit, Due
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.training.transaction import Total
from holdfast.runtime.worker.records import LoopRecords

_MOST_REPAIRS = 32
"""Repairs in a row without an applied update, in a small world."""

_REPAIRS_OF_A_DEATH = 2
"""Each death spoils at most as many; all but one of a large world may die one by one."""

_TELL_EVERY_S = 0.25

_LOOKS_PER_COST = 500
"""At most 0.2 % of the time is spent on it."""

_LONGEST_LOOK_S = 10.0
"""No look waits longer."""


class Progress:
    """Applies agreed totals to the replica and moves the cursor, always both together."""

    def __init__(self, replica: Replica, job: TrainingJob, records: LoopRecords) -> None:
        self._replica = replica
        self._epoch_sums = epoch_sums(replica)
        self._job = job
        self._records = records
        self.cursor = first_cursor(replica, job.stage.begin)
        self.metrics: dict[str, float] = {}
        self.validation: dict[str, float] | None = None
        self.measured: EpochMetrics | None = None

    @property
    def of_epoch(self) -> dict[str, float] | None:
        """The metrics of the epoch that has just ended, None if its validation is still to come."""
        plan, cursor = self._job.work_plan, self.cursor
        is_over = plan.has_ended_epoch(cursor) and plan.next_work(cursor) is not Work.EVALUATE
        return self.metrics if is_over else None

    def restore(self, cursor: Cursor) -> None:
        """Go on from ``cursor``; the replica holds the state that belongs to it."""
        cursor = replace(cursor, turn=self._turn)
        self.cursor = cursor = self._job.work_plan.without_missed_passes(cursor)
        if self._job.work_plan.has_ended_epoch(cursor):
            self.metrics = self._replica.results(cursor.sums, cursor.ledger.samples)

    def commit(self, work: Work, total: Total) -> Commit:
        """Make the transaction final."""
        if work is Work.TRAIN:
            self._commit_step(total)
        else:
            self._commit_evaluation(total)
        return self._seen(work)

    def repeat(self, due: Due) -> Commit:
        """Return the last commit of a restored state again, whose callbacks have still to run."""
        cursor = self.cursor
        commit = self._seen(due.work)
        if commit.has_ended_epoch:
            self.validation = None if due.validation is None else dict(due.validation)
            measured = self.metrics, self.validation or {}
            self.measured = EpochMetrics.join(commit.epoch, cursor.step, *measured)
        if due.work is Work.TRAIN:
            hold_metrics(self._replica, cursor.sums, cursor.ledger.samples)
        return self._seen(due.work)

    def _seen(self, work: Work) -> Commit:
        """Return the newest commit, which was of ``work``, as callback hosts see it."""
        cursor, work_plan = self.cursor, self._job.work_plan
        is_over = work_plan.has_ended_epoch(cursor) and work_plan.is_save_point(cursor)
        epoch = work_plan.epoch_of(cursor)
        following = work_plan.next_work(cursor)
        of_epoch = (epoch, is_over, self.metrics, self.validation)
        data_ended = work is Work.TRAIN and self._job.data_ended
        ends = work_plan.validates_cut(cursor), data_ended
        return Commit(work, cursor, *of_epoch, following, *ends)

    def cut_epoch(self) -> None:
        """End the epoch in hand after the last update; done again, it changes nothing.

        If validation follows, the epoch ends with that.
        """
        work_plan = self._job.work_plan
        if self.cursor.is_cut:
            return
        self.cursor = self.cursor.after_cut()
        epoch = work_plan.epoch_of(self.cursor)
        self._check_ledger(epoch)
        if work_plan.next_work(self.cursor) is not Work.EVALUATE:
            self._end_epoch(epoch, None)

    def finish(self) -> None:
        """End the training of the replica's weights; done again, it changes nothing."""
        if finish := getattr(self._replica, "finish", None):
            finish()

    def refusal(self, total: Total) -> ProgramError | None:
        """Return the error of a total that is not finite, None if replica or script take it."""
        replica = self._replica
        if self._job.takes_nan:
            return None
        takes_overflow = getattr(replica, "takes_overflow", None)
        if takes_overflow and takes_overflow(total.contribution):
            return None
        samples = max(total.samples, 1)
        results = replica.results(self._step_sums(total), samples)
        return ProgramError(
            f"the gradients or the loss of step {self.cursor.step + 1} are not finite "
            f"({_shown(results)}); nothing of this step was applied. Lower the learning rate or "
            "mend the samples, and begin anew with --fresh or another --run-dir: this run keeps "
            "its learning rate, and would come to the same step"
        )

    def _commit_step(self, total: Total) -> None:
        work_plan = self._job.work_plan
        before = self.cursor
        if work_plan.is_epoch_start(before):
            before = replace(before.at_epoch_start(), sums=self._epoch_sums.carried(before.sums))
        sums = self._step_sums(total)
        self._replica.apply(total.contribution, total.samples)
        if self._turn:
            self.cursor = before.after_turn(self._turn, sums)
            return
        self.cursor = before.after_step(total.samples, total.fingerprint, sums)
        epoch = work_plan.epoch_of(self.cursor)
        self._records.stepped(self.cursor, epoch, total.samples)
        if work_plan.has_ended_epoch(self.cursor):
            self._check_ledger(epoch)
            if work_plan.next_work(self.cursor) is not Work.EVALUATE:
                self._end_epoch(epoch, None)
            hold_metrics(self._replica, self.cursor.sums, self.cursor.ledger.samples)

    @property
    def _turn(self) -> int:
        return int(getattr(self._replica, "turn", 0))

    def _commit_evaluation(self, total: Total) -> None:
        passed = pass_sums(self._replica, self._replica.shape.metrics, total.contribution)
        before = self.cursor.sums
        sums = self._epoch_sums.carried(before) + passed
        cursor = self.cursor.after_evaluation()
        self.cursor = replace(cursor, sums=self._epoch_sums.with_pass(before, passed))
        validation = self._replica.results(sums, total.samples)
        self._end_epoch(self._job.work_plan.epoch_of(self.cursor), validation)
        hold_metrics(self._replica, sums, total.samples)

    def _end_epoch(self, epoch: int, validation: dict[str, float] | None) -> None:
        self.metrics = self._replica.results(self.cursor.sums, self.cursor.ledger.samples)
        self.validation = validation
        self.measured = EpochMetrics.join(epoch, self.cursor.step, self.metrics, validation or {})
        self._records.ended_epoch(epoch, self.cursor, self.metrics, validation)

    def _check_ledger(self, epoch: int) -> None:
        if not self._job.covers_epoch(self.cursor):
            raise RecoveryImpossible(
                f"epoch {epoch} applied {self.cursor.ledger.samples} samples that are not each "
                "sample of the epoch exactly once; this is a defect of holdfast or of the machine: "
                "report it, and run again from the last checkpoint"
            )

    def _step_sums(self, total: Total) -> Sums:
        """Return what a step's total, whose memory is soon written again, adds to its epoch's."""
        metrics = total.contribution[self._replica.shape.gradient :].astype(np.float64)
        return self._epoch_sums.settle(metrics, max(total.samples, 1))


def _shown(results: dict[str, float]) -> str:
    """Return the loss, or what a step without one tells instead."""
    told = {"loss": results["loss"]} if "loss" in results else results
    return ", ".join(f"{name} {value}" for name, value in told.items())


def check_metric(best: Best | None, replica: Replica, *, has_validation: bool) -> None:
    """Refuse a metric that no epoch will have.

    Raises:
        ProgramError: no epoch has the metric; the message lists the metrics of an epoch.
    """
    if best is None:
        return
    # Names do not depend on the sums; ones avoid a division by zero.
    names = replica.results(np.ones(replica.shape.metrics, np.float64), 1)
    known = EpochMetrics.join(1, 1, names, names if has_validation else {}).values
    if best.metric not in known:
        raise ProgramError(
            f"keep_best asks for {best.metric!r}, but an epoch has "
            f"{', '.join(sorted(known))}; change the script"
        )


class ProgressTeller:
    """Writes the progress of one training loop into the page of its worker.

    Call ``committed`` after each commit, on the first worker of the world.
    """

    def __init__(
        self,
        page: WorkerStatus,
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

    def committed(
        self,
        now: float,
        cursor: Cursor,
        next_save_at: float | None,
        of_epoch: dict[str, float] | None = None,
    ) -> None:
        """Tell of ``cursor``, if it is the last or the last word is old enough; moments in s.

        ``of_epoch`` are the metrics of the epoch, if they are known.
        """
        is_last = cursor.step >= self._job.work_plan.steps
        if now < self._due and not is_last:
            self._untold = now, cursor, next_save_at
            return
        self._due = now + _TELL_EVERY_S
        if of_epoch is not None:
            self._seen = self._job.work_plan.epoch_of(cursor), of_epoch
        elif now >= self._look_due or is_last:
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
        self._look_due = now + min(max(_TELL_EVERY_S, _LOOKS_PER_COST * cost_s), _LONGEST_LOOK_S)

    def _report(self, now: float, cursor: Cursor, next_save_at: float | None) -> StepReport:
        plan = self._job.work_plan
        epoch, metrics = self._seen
        next_save = plan.next_save_step(cursor)
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
            next_save_step=next_save if next_save < NO_END else None,  # the end, which nobody knows
            next_save_at=next_save_at,
        )

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


class RepairCount:
    """The repairs since the last applied update."""

    def __init__(self, config: WorkerConfig) -> None:
        self._most = max(_MOST_REPAIRS, _REPAIRS_OF_A_DEATH * len(config.workers))
        self._may_shrink = config.options.shrink
        self.attempts = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether the world is not to be repaired once more."""
        return self.attempts > self._most or not self._may_shrink

    def lost(self) -> WorldLost:
        """Return the error of a world that was given up."""
        return WorldLost(
            f"a member of the world died, and {self.attempts - 1} repairs in a row have not "
            "led to a step; the job must be relaunched"
        )
