"""The committed progress: cursor and metrics of ended epochs, and what people are told of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from configs import worker_config
from simulation import FEATURES, TinyReplica, TurningReplica, data

from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.recovery.ledger import Cursor, fingerprint
from holdfast.recovery.order import SampleOrder
from holdfast.recovery.reduction import FloatVector
from holdfast.recovery.work_plan import Work
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.callback_host import Commit
from holdfast.runtime.training.progress import Progress, ProgressTeller
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job
from holdfast.runtime.training.transaction import Total

SAMPLES, VALIDATED = 23, 11
NUMERICS = Numerics.here(threads=1)
REQUEST = TrainingRequest(data(23), None, global_batch=9, epochs=2, save_every=4, verbose=2)


def job(*, is_validated: bool = False, takes_nan: bool = False) -> TrainingJob:
    """Return a job of two epochs, each of 9, 9 and 5 samples."""
    validation = data(VALIDATED) if is_validated else None
    request = TrainingRequest(data(SAMPLES), validation, 9, 2, takes_nan=takes_nan)
    return describe_job(request, worker_config(microbatches=2), NUMERICS)


def total(ids: Any, loss: float) -> Total:
    contribution = np.zeros(FEATURES + 1, np.float32)
    contribution[0], contribution[-1] = 1.0, loss
    return Total(contribution, len(ids), fingerprint(ids))


class Heard:
    """Stands in for the journal's records, and keeps what they are given."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.epochs: list[tuple[Any, ...]] = []

    def stepped(self, cursor: Cursor, epoch: int, samples: int) -> None:
        self.steps.append((cursor.step, epoch, samples))

    def ended_epoch(self, epoch: int, cursor: Cursor, *metrics: Any) -> None:
        self.epochs.append((epoch, cursor.step, *metrics))


class Run:
    """A progress, and the updates of its job one after the other."""

    def __init__(self, job: TrainingJob, replica: Any = None) -> None:
        self.heard: Any = Heard()
        self.replica = replica or TinyReplica()
        self.progress = Progress(self.replica, job, self.heard)
        assert isinstance(job.order, SampleOrder)
        self._order = job.order

    def step(self, loss: float = 9.0) -> Commit:
        ids = self._order.batch(self.progress.cursor.step)
        return self.progress.commit(Work.TRAIN, total(ids, loss))

    def steps(self, updates: int) -> Commit:
        return [self.step() for _ in range(updates)][-1]

    def validate(self, loss: float) -> Commit:
        sums = np.array([loss], np.float32)
        return self.progress.commit(Work.EVALUATE, Total(sums, VALIDATED, 0))


def test_epoch_that_is_not_validated_ends_with_its_last_update() -> None:
    run = Run(job())

    commit = run.steps(3)

    metrics = {"loss": 27.0 / SAMPLES}
    assert (commit.has_ended_epoch, commit.metrics, commit.validation) == (True, metrics, None)
    assert run.heard.epochs == [(1, 3, metrics, None)]
    assert run.progress.measured == EpochMetrics(1, 3, metrics)
    assert run.progress.of_epoch == metrics


def test_epoch_that_is_validated_ends_when_that_is_committed() -> None:
    run = Run(job(is_validated=True))

    trained = run.steps(3)
    assert (trained.has_ended_epoch, trained.next_work) == (False, Work.EVALUATE)
    assert (run.heard.epochs, run.progress.of_epoch) == ([], None)
    validated = run.validate(22.0)

    assert (validated.has_ended_epoch, validated.next_work) == (True, Work.TRAIN)
    assert validated.validation == {"loss": 2.0}
    assert run.progress.measured == EpochMetrics(1, 3, {"loss": 27.0 / SAMPLES, "val_loss": 2.0})


@pytest.mark.parametrize("is_validated", [False, True])
@pytest.mark.parametrize(
    ("last", "samples"), [([0, 0, 1, 2, 3], 23), ([0, 1, 2, 3], 22)], ids=["twice", "missing"]
)
def test_epoch_without_each_sample_once_is_refused(
    *, is_validated: bool, last: list[int], samples: int
) -> None:
    run = Run(job(is_validated=is_validated))
    run.steps(2)

    with pytest.raises(RecoveryImpossible, match=f"epoch 1 applied {samples} samples that are not"):
        run.progress.commit(Work.TRAIN, total(last, 1.0))

    assert run.heard.epochs == []


def test_epoch_that_is_cut_ends_where_it_is_and_only_once() -> None:
    run = Run(job())
    run.steps(2)

    for _ in range(2):
        run.progress.cut_epoch()

    assert run.heard.epochs == [(1, 2, {"loss": 1.0}, None)]
    assert run.progress.cursor.is_cut


def test_epoch_that_is_cut_ends_with_its_validation() -> None:
    run = Run(job(is_validated=True))
    assert run.step().validates_cut

    run.progress.cut_epoch()
    assert run.heard.epochs == []
    commit = run.validate(11.0)

    assert commit.has_ended_epoch
    assert run.heard.epochs == [(1, 1, {"loss": 1.0}, {"loss": 1.0})]


@pytest.mark.parametrize(
    ("loss", "samples", "shown"),
    [(math.inf, 9, "loss inf"), (math.nan, 0, "loss nan")],
    ids=["infinite", "nothing counted"],
)
def test_update_that_is_not_finite_is_refused_with_its_step_and_loss(
    loss: float, samples: int, shown: str
) -> None:
    run = Run(job())
    run.steps(2)

    error = run.progress.refusal(total(range(samples), loss))

    assert f"of step 3 are not finite ({shown}); nothing of this step was applied" in str(error)
    assert run.progress.cursor.step == 2


@pytest.mark.parametrize(("name", "shown"), [("loss", "(loss inf)"), ("mae", "(mae inf, mse 2.0)")])
def test_update_is_refused_with_its_loss_or_else_with_all_that_it_has(
    name: str, shown: str
) -> None:
    class Several(TinyReplica):
        def results(self, sums: Any, samples: int) -> dict[str, float]:
            return {name: float(sums[0]), "mse": 2.0}

    error = Run(job(), Several()).progress.refusal(total([1], math.inf))

    assert shown in str(error)


@pytest.mark.parametrize("is_taken", [True, False])
def test_replica_says_whether_it_takes_an_overflow(*, is_taken: bool) -> None:
    class Scaling(TinyReplica):
        def takes_overflow(self, total: FloatVector) -> bool:
            return is_taken

    error = Run(job(), Scaling()).progress.refusal(total([1], math.inf))

    assert (error is None) == is_taken


def test_script_that_takes_nan_is_refused_nothing() -> None:
    assert Run(job(takes_nan=True)).progress.refusal(total([1], math.nan)) is None


@pytest.mark.parametrize(("step", "metrics"), [(2, {}), (3, {"loss": 27.0 / SAMPLES})])
def test_run_that_goes_on_from_an_epochs_end_has_its_metrics(
    step: int, metrics: dict[str, float]
) -> None:
    before, run = Run(job()), Run(job())
    before.steps(step)

    run.progress.restore(before.progress.cursor)

    assert run.progress.metrics == metrics


def test_epochs_before_validation_was_switched_on_get_none() -> None:
    before, run = Run(job()), Run(job(is_validated=True))
    before.steps(4)

    run.progress.restore(before.progress.cursor)

    assert run.progress.cursor.evaluations == 1
    assert run.step().next_work is Work.TRAIN


class Holding(TinyReplica):
    """Takes down what its metrics have to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[list[float], int]] = []

    def hold(self, sums: Any, samples: int) -> None:
        self.held.append((sums.tolist(), samples))


def test_metrics_are_held_at_the_end_of_an_epoch_and_of_its_validation() -> None:
    run = Run(job(is_validated=True), Holding())

    run.steps(3)
    run.validate(22.0)

    assert run.replica.held == [([27.0], SAMPLES), ([22.0], VALIDATED)]


def test_replica_that_finishes_its_weights_does_so_with_the_training() -> None:
    run = Run(job(), TurningReplica())
    run.progress.finish()

    Run(job()).progress.finish()  # others have nothing to finish

    assert run.replica.finished == 1


def told_job() -> TrainingJob:
    return describe_job(REQUEST, worker_config(microbatches=2), Numerics.here(threads=1))


def at_step(step: int) -> Cursor:
    cursor = Cursor.start(1)
    for _ in range(step):
        cursor = cursor.after_step(9, 0, np.array([4.5]))
    return cursor


@pytest.fixture
def page() -> Iterator[WorkerStatus]:
    page = WorkerStatus.create()
    yield page
    page.close()


def told_in(page: WorkerStatus) -> StepReport:
    found = StepReport.decode(page.progress)
    assert found is not None
    return found


def test_first_step_is_told_with_everything_that_a_line_needs(page: WorkerStatus) -> None:
    teller = ProgressTeller(page, TinyReplica(), told_job(), clock=lambda: 100.0)

    teller.committed(100.0, at_step(1), 130.0)

    assert told_in(page) == StepReport(
        now=100.0, step=1, steps=6, epoch=1, epochs=2, step_of_epoch=1, steps_per_epoch=3,
        metrics={"loss": 0.5}, verbose=2, next_save_step=4, next_save_at=130.0,
    )  # fmt: skip


class Costly(TinyReplica):
    """Computing metrics takes time: much at first, as with Keras, and then always as much."""

    def __init__(self, cost_s: float) -> None:
        super().__init__()
        self.now = 100.0
        self.looks: list[int] = []
        self._cost_s = cost_s

    def results(self, sums: object, samples: int) -> dict[str, float]:
        self.now += self._cost_s if self.looks else 0.4
        self.looks.append(samples)
        return {"loss": 1.0 + len(self.looks)}


@pytest.mark.parametrize(
    ("cost_s", "due_s"),
    [(0.0, 0.25), (1e-4, 0.25), (2e-3, 1.0), (0.4, 10.0)],
    ids=["free", "cheap", "dear", "dearest"],
)
def test_next_look_at_metrics_waits_until_the_last_was_a_small_part_of_the_time(
    page: WorkerStatus, cost_s: float, due_s: float
) -> None:
    replica = Costly(cost_s)
    teller = ProgressTeller(page, replica, told_job(), clock=lambda: replica.now)
    teller.committed(100.0, at_step(1), None)
    teller.committed(100.3, at_step(1), None)
    assert len(replica.looks) == 2  # building what computes them is no cost of a look

    teller.committed(100.3 + due_s - 0.01, at_step(2), None)
    assert len(replica.looks) == 2

    teller.committed(100.3 + due_s + 0.26, at_step(2), None)
    assert len(replica.looks) == 3


@pytest.mark.parametrize(
    ("before", "now", "step", "epoch", "metrics"),
    [
        ([(100.0, 1), (100.3, 1)], 101.0, 2, 1, {"loss": 3.0}),
        ([(100.0, 2), (100.3, 3)], 101.0, 4, 2, {}),
        ([(100.0, 4), (100.3, 5)], 100.31, 6, 2, {"loss": 4.0}),
    ],
    ids=["the step moves on without a look", "those of the last epoch", "the last step of all"],
)
def test_metrics_are_those_of_the_last_look_if_that_was_in_the_same_epoch(
    page: WorkerStatus,
    before: list[tuple[float, int]],
    now: float,
    step: int,
    epoch: int,
    metrics: dict[str, float],
) -> None:
    replica = Costly(0.4)
    teller = ProgressTeller(page, replica, told_job(), clock=lambda: replica.now)
    for moment, committed in before:
        teller.committed(moment, at_step(committed), None)

    teller.committed(now, at_step(step), None)

    told = told_in(page)
    assert (told.step, told.epoch, told.metrics) == (step, epoch, metrics)


def test_metrics_of_an_epoch_that_has_ended_are_not_computed_again(page: WorkerStatus) -> None:
    replica = Costly(0.4)
    teller = ProgressTeller(page, replica, told_job(), clock=lambda: replica.now)
    begun = replica.now

    teller.committed(100.0, at_step(6), None, {"loss": 7.0})

    assert (told_in(page).metrics, replica.now) == ({"loss": 7.0}, begun)


class Failing(TinyReplica):
    def results(self, sums: object, samples: int) -> dict[str, float]:
        raise ZeroDivisionError("too early for this metric")


def test_metric_that_cannot_be_computed_yet_ends_no_training(page: WorkerStatus) -> None:
    ProgressTeller(page, Failing(), told_job()).committed(0.0, at_step(1), None)

    assert told_in(page).metrics == {}


def test_step_that_came_too_soon_after_a_word_is_told_with_the_next_heartbeat(
    page: WorkerStatus,
) -> None:
    teller = ProgressTeller(page, TinyReplica(), told_job(), clock=lambda: 100.0)
    teller.committed(100.0, at_step(1), None)
    teller.committed(100.01, at_step(4), None)
    assert told_in(page).step == 1

    teller.tell()
    teller.tell()

    told = told_in(page)
    assert (told.now, told.step, told.epoch, told.next_save_step) == (100.01, 4, 2, 6)
