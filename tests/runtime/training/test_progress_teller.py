"""How often the first worker tells its progress, and what stands in its page then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from configs import worker_config
from simulation import TinyReplica, data

from holdfast.recovery.ledger import Cursor
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.training.progress import ProgressTeller
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job

REQUEST = TrainingRequest(data(23), None, global_batch=9, epochs=2, save_every=4, verbose=2)


def job() -> TrainingJob:
    return describe_job(REQUEST, worker_config(microbatches=2), Numerics.here(threads=1))


def at_step(step: int) -> Cursor:
    cursor = Cursor.start(1)
    for _ in range(step):
        cursor = cursor.after_step(9, 0, np.array([4.5]))
    return cursor


@pytest.fixture
def page() -> Iterator[HeartbeatPage]:
    page = HeartbeatPage.create()
    yield page
    page.close()


def told_in(page: HeartbeatPage) -> StepReport:
    found = StepReport.decode(page.progress)
    assert found is not None
    return found


def test_first_step_is_told_with_everything_that_a_line_needs(page: HeartbeatPage) -> None:
    teller = ProgressTeller(page, TinyReplica(), job(), clock=lambda: 100.0)

    teller.committed(100.0, at_step(1), 130.0)

    assert told_in(page) == StepReport(
        now=100.0, step=1, steps=6, epoch=1, epochs=2, step_of_epoch=1, steps_per_epoch=3,
        metrics={"loss": 0.5}, verbose=2, next_save_step=4, next_save_at=130.0,
    )  # fmt: skip


def test_last_step_of_an_epoch_belongs_to_it(page: HeartbeatPage) -> None:
    ProgressTeller(page, TinyReplica(), job()).committed(0.0, at_step(3), None)

    told = told_in(page)
    assert (told.epoch, told.step_of_epoch) == (1, 3)


def test_next_word_waits_a_quarter_of_a_second(page: HeartbeatPage) -> None:
    teller = ProgressTeller(page, TinyReplica(), job())

    teller.committed(100.0, at_step(1), None)
    teller.committed(100.24, at_step(2), None)
    assert told_in(page).step == 1

    teller.committed(100.26, at_step(3), None)
    assert told_in(page).step == 3


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
    page: HeartbeatPage, cost_s: float, due_s: float
) -> None:
    replica = Costly(cost_s)
    teller = ProgressTeller(page, replica, job(), clock=lambda: replica.now)
    teller.committed(100.0, at_step(1), None)
    teller.committed(100.3, at_step(1), None)
    assert len(replica.looks) == 2  # building what computes them is no cost of a look

    teller.committed(100.3 + due_s - 0.01, at_step(2), None)
    assert len(replica.looks) == 2

    teller.committed(100.3 + due_s + 0.26, at_step(2), None)
    assert len(replica.looks) == 3


def test_step_moves_on_while_a_look_at_its_metrics_would_cost_too_much(
    page: HeartbeatPage,
) -> None:
    replica = Costly(0.4)
    teller = ProgressTeller(page, replica, job(), clock=lambda: replica.now)
    teller.committed(100.0, at_step(1), None)
    teller.committed(100.3, at_step(1), None)

    teller.committed(101.0, at_step(2), None)

    told = told_in(page)
    assert (told.step, told.step_of_epoch, told.metrics) == (2, 2, {"loss": 3.0})


def test_metrics_of_the_last_epoch_are_not_those_of_this_one(page: HeartbeatPage) -> None:
    replica = Costly(0.4)
    teller = ProgressTeller(page, replica, job(), clock=lambda: replica.now)
    teller.committed(100.0, at_step(2), None)
    teller.committed(100.3, at_step(3), None)

    teller.committed(101.0, at_step(4), None)

    told = told_in(page)
    assert (told.epoch, told.metrics) == (2, {})


def test_last_step_of_all_has_its_own_metrics(page: HeartbeatPage) -> None:
    replica = Costly(0.4)
    teller = ProgressTeller(page, replica, job(), clock=lambda: replica.now)
    teller.committed(100.0, at_step(4), None)
    teller.committed(100.3, at_step(5), None)

    teller.committed(100.31, at_step(6), None)

    assert told_in(page).metrics == {"loss": 4.0}


def test_last_step_is_told_at_once(page: HeartbeatPage) -> None:
    teller = ProgressTeller(page, TinyReplica(), job(), clock=lambda: 100.0)

    teller.committed(100.0, at_step(5), None)
    teller.committed(100.01, at_step(6), None)

    assert told_in(page).step == 6


class Failing(TinyReplica):
    def results(self, sums: object, samples: int) -> dict[str, float]:
        raise ZeroDivisionError("too early for this metric")


def test_metric_that_cannot_be_computed_yet_ends_no_training(page: HeartbeatPage) -> None:
    ProgressTeller(page, Failing(), job()).committed(0.0, at_step(1), None)

    assert told_in(page).metrics == {}


def test_training_without_a_sample_so_far_has_no_metrics(page: HeartbeatPage) -> None:
    cursor = dataclasses.replace(at_step(3).at_epoch_start())

    ProgressTeller(page, TinyReplica(), job()).committed(0.0, cursor, None)

    assert told_in(page).metrics == {}


def test_step_that_came_too_soon_after_a_word_is_told_with_the_next_heartbeat(
    page: HeartbeatPage,
) -> None:
    teller = ProgressTeller(page, TinyReplica(), job(), clock=lambda: 100.0)
    teller.committed(100.0, at_step(1), None)
    teller.committed(100.01, at_step(4), None)
    assert told_in(page).step == 1

    teller.tell()
    teller.tell()

    told = told_in(page)
    assert (told.now, told.step, told.epoch, told.next_save_step) == (100.01, 4, 2, 6)
