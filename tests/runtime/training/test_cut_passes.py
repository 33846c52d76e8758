"""Epochs that are parts of a pass: how many steps they have, and the proof of their samples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from configs import worker_config
from simulation import data

from holdfast.recovery.ledger import Cursor, Ledger, fingerprint
from holdfast.recovery.order import SampleOrder
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job

SAMPLES, BATCH = 23, 5


def job(steps_per_epoch: int | None) -> TrainingJob:
    request = TrainingRequest(data(SAMPLES), None, BATCH, 4, steps_per_epoch=steps_per_epoch)
    return describe_job(request, worker_config(microbatches=2), Numerics.here(threads=1))


def after(job: TrainingJob, step: int) -> Cursor:
    """Return the cursor after ``step`` updates that recorded the samples of their order."""
    cursor, order = Cursor.start(1), job.order
    assert isinstance(order, SampleOrder)
    for index in range(step):
        if job.work_plan.is_epoch_start(cursor):
            cursor = cursor.at_epoch_start()
        ids = order.batch(index)
        cursor = cursor.after_step(len(ids), fingerprint(ids), np.zeros(1))
    return cursor


@pytest.mark.parametrize(
    ("asked", "ends"),
    [(2, [2, 4, 5, 7]), (4, [4, 5, 9, 10]), (5, [5, 10, 15, 20]), (9, [5, 10, 15, 20])],
)
def test_epochs_of_arrays_end_with_the_pass(asked: int, ends: list[int]) -> None:
    cut = job(asked)

    for step in ends:
        cursor = after(cut, step)
        assert cut.work_plan.has_ended_epoch(cursor)
        assert cut.covers_epoch(cursor)
    assert cut.work_plan.steps == ends[-1]


def test_sample_that_was_used_twice_is_seen() -> None:
    cut = job(2)
    cursor = after(cut, 4)
    order = cut.order
    assert isinstance(order, SampleOrder)
    twice = np.concatenate([order.batch(2), order.batch(2)])

    wrong = dataclasses.replace(cursor, ledger=Ledger(len(twice), fingerprint(twice)))

    assert cut.covers_epoch(cursor)
    assert not cut.covers_epoch(wrong)


def test_other_steps_are_another_run() -> None:
    names = [set(job(asked).identity) for asked in (None, 5, 2)]

    assert names[0] == names[1]
    assert names[2] - names[0] == {"steps per epoch"}
