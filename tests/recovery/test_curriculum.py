from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.curriculum import Curriculum, Work
from holdfast.recovery.cursor import Cursor

_CURRICULA = st.builds(
    Curriculum, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(1, 9)
)


def whole_job(curriculum: Curriculum) -> list[tuple[Work, Cursor]]:
    """Return every transaction of the job with the cursor after it."""
    cursor, done = Cursor.start(1), []
    while (work := curriculum.next_work(cursor)) is not None:
        if work is Work.TRAIN:
            cursor = cursor.after_step(1, 0, np.zeros(1))
        else:
            cursor = cursor.after_evaluation()
        done.append((work, cursor))
        assert len(done) <= 100
    return done


@given(_CURRICULA)
def test_every_step_once_and_a_validation_after_each_epoch(curriculum: Curriculum) -> None:
    epoch = [Work.TRAIN] * curriculum.steps_per_epoch
    if curriculum.has_validation:
        epoch.append(Work.EVALUATE)

    assert [work for work, _ in whole_job(curriculum)] == epoch * curriculum.epochs


@given(_CURRICULA)
def test_no_save_point_between_an_epoch_and_its_validation(curriculum: Curriculum) -> None:
    """A step has one state that may be saved, and every step has one."""
    states: dict[int, list[Cursor]] = {}
    for _, cursor in whole_job(curriculum):
        if curriculum.is_save_point(cursor):
            states.setdefault(cursor.step, []).append(cursor)
            assert not (
                curriculum.has_validation
                and curriculum.has_ended_epoch(cursor)
                and cursor.evaluations < cursor.step // curriculum.steps_per_epoch
            )
        else:
            assert curriculum.next_work(cursor) is Work.EVALUATE

    assert list(states) == list(range(1, curriculum.steps + 1))
    assert all(len(cursors) == 1 for cursors in states.values())


@given(_CURRICULA)
def test_saves_are_due_once_at_every_multiple(curriculum: Curriculum) -> None:
    every = curriculum.save_every
    assert every is not None

    assert steps_due(curriculum) == list(range(every, curriculum.steps + 1, every))


@given(_CURRICULA)
def test_saves_of_epochs_come_beside_those_of_steps(curriculum: Curriculum) -> None:
    ends = range(curriculum.steps_per_epoch, curriculum.steps + 1, curriculum.steps_per_epoch)

    both = steps_due(dataclasses.replace(curriculum, saves_epochs=True))
    epochs = steps_due(dataclasses.replace(curriculum, save_every=None, saves_epochs=True))

    assert epochs == list(ends)
    assert both == sorted({*steps_due(curriculum), *ends})
    assert steps_due(dataclasses.replace(curriculum, save_every=None)) == []


@given(_CURRICULA, st.integers(1, 9))
def test_what_is_kept_for_ever_has_to_be_saved(curriculum: Curriculum, every: int) -> None:
    kept = dataclasses.replace(curriculum, keep_every=every)

    assert steps_due(kept) == sorted(
        {*steps_due(curriculum), *range(every, curriculum.steps + 1, every)}
    )


def steps_due(curriculum: Curriculum) -> list[int]:
    """Return the steps of the whole job at which the cursor alone makes a save due."""
    return [cursor.step for _, cursor in whole_job(curriculum) if curriculum.is_save_due(cursor)]


@given(_CURRICULA)
def test_epochs_begin_end_and_are_numbered(curriculum: Curriculum) -> None:
    before = Cursor.start(1)
    for work, cursor in whole_job(curriculum):
        assert curriculum.epoch_of(cursor) == -(-cursor.step // curriculum.steps_per_epoch)
        if work is Work.TRAIN:
            is_first = (cursor.step - 1) % curriculum.steps_per_epoch == 0
            assert curriculum.is_epoch_start(before) is is_first
        before = cursor

    assert curriculum.has_ended_epoch(before)


def test_nothing_is_saved_or_ended_at_the_start() -> None:
    curriculum = Curriculum(3, 2, has_validation=True, save_every=1)

    assert not curriculum.is_save_point(Cursor.start(1))
    assert not curriculum.has_ended_epoch(Cursor.start(1))
    assert curriculum.epoch_of(Cursor.start(1)) == 1


@pytest.mark.parametrize("evaluations", [2, 3])
def test_job_that_is_complete_stays_complete(evaluations: int) -> None:
    """Also with more evaluations than epochs, as after resuming with fewer of them."""
    curriculum = Curriculum(3, 2, has_validation=True, save_every=1)
    cursor = Cursor(6, evaluations, Cursor.start(1).ledger, np.zeros(1))

    assert curriculum.next_work(cursor) is None
