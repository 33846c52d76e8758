"""Which transaction is next, and when a save is due."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.ledger import Cursor
from holdfast.recovery.work_plan import Work, WorkPlan

_CURRICULA = st.builds(
    WorkPlan, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(1, 9)
)

_SOME_EPOCHS = st.sets(st.integers(1, 9)).map(lambda epochs: tuple(sorted(epochs)))

_CUT = st.builds(
    WorkPlan,
    st.integers(1, 6),
    st.integers(1, 5),
    st.booleans(),
    st.integers(1, 9),
    begin=st.integers(0, 9),
    first_epoch=st.integers(0, 3),
    pass_steps=st.integers(1, 9),
)


def whole_job(work_plan: WorkPlan, cursor: Cursor | None = None) -> list[tuple[Work, Cursor]]:
    """Return every transaction of the job, or of its rest, with the cursor after it."""
    cursor, done = cursor or Cursor.start(1), []
    while (work := work_plan.next_work(cursor)) is not None:
        if work is Work.TRAIN:
            cursor = cursor.after_step(1, 0, np.zeros(1))
        else:
            cursor = cursor.after_evaluation()
        done.append((work, cursor))
        assert len(done) <= 100
    return done


@given(_CURRICULA)
def test_every_step_once_and_a_validation_after_each_epoch(work_plan: WorkPlan) -> None:
    epoch = [Work.TRAIN] * work_plan.steps_per_epoch
    if work_plan.has_validation:
        epoch.append(Work.EVALUATE)

    assert [work for work, _ in whole_job(work_plan)] == epoch * work_plan.epochs


@given(_CURRICULA)
def test_no_save_point_between_an_epoch_and_its_validation(work_plan: WorkPlan) -> None:
    """A step has one state that may be saved, and every step has one."""
    states: dict[int, list[Cursor]] = {}
    for _, cursor in whole_job(work_plan):
        if work_plan.is_save_point(cursor):
            states.setdefault(cursor.step, []).append(cursor)
            assert not (
                work_plan.has_validation
                and work_plan.has_ended_epoch(cursor)
                and cursor.evaluations < cursor.step // work_plan.steps_per_epoch
            )
        else:
            assert work_plan.next_work(cursor) is Work.EVALUATE

    assert list(states) == list(range(1, work_plan.steps + 1))
    assert all(len(cursors) == 1 for cursors in states.values())


@given(_CURRICULA)
def test_saves_are_due_once_at_every_multiple(work_plan: WorkPlan) -> None:
    every = work_plan.save_every
    assert every is not None

    assert steps_due(work_plan) == list(range(every, work_plan.steps + 1, every))


@given(_CURRICULA)
def test_saves_of_epochs_come_beside_those_of_steps(work_plan: WorkPlan) -> None:
    ends = range(work_plan.steps_per_epoch, work_plan.steps + 1, work_plan.steps_per_epoch)

    both = steps_due(dataclasses.replace(work_plan, saves_epochs=True))
    epochs = steps_due(dataclasses.replace(work_plan, save_every=None, saves_epochs=True))

    assert epochs == list(ends)
    assert both == sorted({*steps_due(work_plan), *ends})
    assert steps_due(dataclasses.replace(work_plan, save_every=None)) == []


@given(_CURRICULA, st.integers(1, 9))
def test_what_is_kept_for_ever_has_to_be_saved(work_plan: WorkPlan, every: int) -> None:
    kept = dataclasses.replace(work_plan, keep_every=every)

    assert steps_due(kept) == sorted(
        {*steps_due(work_plan), *range(every, work_plan.steps + 1, every)}
    )


def steps_due(work_plan: WorkPlan) -> list[int]:
    """Return the steps of the whole job at which the cursor alone makes a save due."""
    return [cursor.step for _, cursor in whole_job(work_plan) if work_plan.is_save_due(cursor)]


def test_nothing_is_saved_or_ended_at_the_start() -> None:
    work_plan = WorkPlan(3, 2, has_validation=True, save_every=1)

    assert not work_plan.is_save_point(Cursor.start(1))
    assert not work_plan.has_ended_epoch(Cursor.start(1))
    assert work_plan.epoch_of(Cursor.start(1)) == 1


@pytest.mark.parametrize(
    ("step", "evaluations", "works"),
    [
        (0, 0, 3 * [*4 * [Work.TRAIN], Work.EVALUATE]),
        (6, 0, [*2 * [Work.TRAIN], Work.EVALUATE, *4 * [Work.TRAIN], Work.EVALUATE]),
        (8, 0, [Work.EVALUATE, *4 * [Work.TRAIN], Work.EVALUATE]),
        (8, 2, [*4 * [Work.TRAIN], Work.EVALUATE]),
        (12, 0, [Work.EVALUATE]),
    ],
)
def test_validation_that_is_switched_on_at_a_resume_is_not_made_up_for(
    step: int, evaluations: int, works: list[Work]
) -> None:
    plan = WorkPlan(steps_per_epoch=4, epochs=3, has_validation=True, save_every=None)
    resumed = plan.without_missed_passes(
        dataclasses.replace(Cursor.start(1), step=step, evaluations=evaluations)
    )

    assert [work for work, _ in whole_job(plan, resumed)] == works


@pytest.mark.parametrize(
    ("validated", "first_epoch", "step", "is_due"),
    [
        (1, 0, 5, True),
        (2, 0, 2, False),
        (2, 0, 5, True),
        (2, 1, 1, True),
        ((3,), 0, 5, False),
        ((2,), 0, 5, True),
    ],
)
def test_epoch_that_is_cut_ends_with_the_validation_that_it_would_have_had(
    validated: int | tuple[int, ...], first_epoch: int, step: int, *, is_due: bool
) -> None:
    """Epochs have 4 steps; nothing is saved between the cut and the validation."""
    plan = WorkPlan(4, 3, True, None, first_epoch=first_epoch, validated=validated)
    start = Cursor.start(1)
    cursor = next(found for _, found in whole_job(plan, start) if found.step == step)
    cut = cursor.after_cut()

    assert plan.validates_cut(cursor) == is_due
    assert plan.has_ended_epoch(cut)
    assert not plan.has_ended_epoch(cursor)
    assert plan.is_save_point(cut) != is_due
    assert plan.updates_of_epoch(cut).stop == step
    assert plan.epoch_of(cut) == plan.epoch_of(cursor)
    if is_due:
        assert plan.next_work(cut.after_evaluation()) is Work.TRAIN
        assert plan.is_save_point(cut.after_evaluation())


@given(
    work_plan=_CURRICULA,
    keep_every=st.sampled_from([None, 1, 4]),
    saves_epochs=st.booleans(),
    step=st.integers(0, 29),
)
def test_next_save_step_is_the_first_at_which_a_save_is_due(
    work_plan: WorkPlan, keep_every: int | None, *, saves_epochs: bool, step: int
) -> None:
    work_plan = dataclasses.replace(
        work_plan, keep_every=keep_every, saves_epochs=saves_epochs, has_validation=False
    )
    later = [
        cursor.step
        for _, cursor in whole_job(work_plan)
        if cursor.step > step and work_plan.is_save_due(cursor)
    ]

    found = work_plan.next_save_step(dataclasses.replace(Cursor.start(1), step=step))

    assert found == min([*later, work_plan.steps])


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 3), st.integers(1, 4) | _SOME_EPOCHS)
def test_epochs_are_validated_as_keras_does(
    steps: int, epochs: int, first: int, validated: int | tuple[int, ...]
) -> None:
    plan = WorkPlan(steps, epochs, True, None, begin=100, first_epoch=first, validated=validated)
    done = whole_job(plan, Cursor.start(1, 100))
    seen = [plan.epoch_of(cursor) for work, cursor in done if work is Work.EVALUATE]

    assert done[-1][1].step == 100 + steps * epochs == plan.steps
    wanted = range(first + 1, first + epochs + 1)
    if isinstance(validated, int):
        assert seen == [epoch for epoch in wanted if epoch % validated == 0]
    else:
        assert seen == [epoch for epoch in wanted if epoch in validated]


@given(_CUT)
def test_epochs_of_a_pass_that_is_cut_are_those_of_keras(work_plan: WorkPlan) -> None:
    """Keras counts steps within the pass; an epoch ends with the pass at the latest."""
    epochs, seen = [0], 0
    while len(epochs) <= work_plan.epochs:
        seen, epochs[-1] = seen + 1, epochs[-1] + 1
        is_pass_over = seen == max(work_plan.pass_steps or 0, work_plan.steps_per_epoch)
        seen = 0 if is_pass_over else seen
        if is_pass_over or epochs[-1] == work_plan.steps_per_epoch:
            epochs.append(0)

    assert epochs_of(work_plan) == epochs[:-1]
    assert work_plan.steps == work_plan.begin + sum(epochs)


def epochs_of(work_plan: WorkPlan) -> list[int]:
    """Return the steps of each epoch, as every method of the plan tells them."""
    found: list[int] = []
    before = Cursor.start(1, work_plan.begin)
    for work, cursor in whole_job(work_plan, before):
        if work is Work.TRAIN:
            if work_plan.is_epoch_start(before):
                found.append(0)
            found[-1] += 1
            assert work_plan.step_of_epoch(cursor) == found[-1]
            assert work_plan.epoch_of(cursor) == work_plan.first_epoch + len(found)
            updates = work_plan.updates_of_epoch(cursor)
            assert updates.start == sum(found[:-1])
            assert work_plan.has_ended_epoch(cursor) == (len(updates) == found[-1])
        else:
            assert work_plan.has_ended_epoch(before)
            assert cursor.evaluations == len(found)
        before = cursor
    return found


@given(_CURRICULA, st.integers(0, 4))
def test_memory_is_compared_at_multiples_or_never(work_plan: WorkPlan, every: int) -> None:
    plan = dataclasses.replace(work_plan, verify_every=every)
    cursors = [Cursor.start(1), *(cursor for _, cursor in whole_job(plan))]

    checked = {cursor.step for cursor in cursors if plan.is_check_due(cursor)}

    assert checked == (set(range(0, plan.steps + 1, every)) if every else set())
