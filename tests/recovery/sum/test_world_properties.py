"""Worlds and what follows from them: who owns what, whose slice is where, what comes next."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.ledger import MOST_TURNS, Cursor
from holdfast.recovery.step import compare_digests
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.recovery.world import Assignment, WorkerId, World, adopt, assign

MICROBATCHES = st.integers(1, 40)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    workers = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=9)))
    capacity = draw(st.integers(1, len(workers)))
    return World(draw(st.integers(1, 5)), tuple(map(WorkerId, workers)), capacity)


@st.composite
def shrinking(draw: st.DrawFn) -> list[World]:
    """A world and the worlds that follow as its workers die, down to one at most."""
    history = [draw(worlds())]
    while history[-1].size > 1 and draw(st.booleans()):
        workers = history[-1].workers
        survivors = draw(st.sets(st.sampled_from(workers), min_size=1, max_size=len(workers) - 1))
        history.append(history[-1].shrunk_to(survivors))
    return history


# --- worlds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "capacity", "words"),
    [
        ((), 1, "at least one worker"),
        ((2, 1), 2, "ascend"),
        ((1, 1), 2, "without repeats"),
        ((1, 2), 0, "capacity must be at least 1, got 0"),
    ],
)
def test_world_that_cannot_exist_is_refused(
    workers: tuple[int, ...], capacity: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        World(1, tuple(map(WorkerId, workers)), capacity)


@given(worlds())
def test_every_worker_is_active_or_a_spare(world: World) -> None:
    assert (*world.active, *world.spares) == world.workers
    assert len(world.active) == min(world.capacity, world.size)


@given(shrinking())
def test_generations_ascend_and_survivors_keep_their_order(history: list[World]) -> None:
    for before, after in itertools.pairwise(history):
        assert after.generation == before.generation + 1
        assert after.capacity == before.capacity
        assert set(after.workers) < set(before.workers)
        assert list(after.workers) == [w for w in before.workers if w in after.workers]


@given(shrinking())
def test_spare_becomes_active_only_where_an_active_worker_died(history: list[World]) -> None:
    for before, after in itertools.pairwise(history):
        promoted = set(after.active) & set(before.spares)
        dead = set(before.active) - set(after.workers)
        assert len(promoted) <= len(dead)


def test_survivor_that_was_no_member_is_refused() -> None:
    world = World(1, (WorkerId(0), WorkerId(1)), 2)

    with pytest.raises(ValueError, match=r"workers \[5\] are not in the world"):
        world.shrunk_to({WorkerId(1), WorkerId(5)})


def test_world_without_survivors_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        World(1, (WorkerId(0),), 1).shrunk_to(())


# --- assignments --------------------------------------------------------------------------------


@given(MICROBATCHES, shrinking())
def test_after_any_deaths_every_microbatch_has_one_active_owner(
    microbatches: int, history: list[World]
) -> None:
    owned = assign(microbatches, history[0])
    for world in history[1:]:
        owned = adopt(owned, world)
        parts = [owned.owned_by(worker) for worker in world.active]
        assert sorted(itertools.chain(*parts)) == list(range(microbatches))
        assert all(owned.owned_by(spare) == () for spare in world.spares)


@given(MICROBATCHES, shrinking())
def test_adoption_a_second_time_moves_nothing(microbatches: int, history: list[World]) -> None:
    """Workers that repair twice for the same world come to the same assignment."""
    once = adopt(assign(microbatches, history[0]), history[-1])

    assert adopt(once, history[-1]) == once


@given(MICROBATCHES, shrinking())
def test_survivor_keeps_all_that_it_has_computed(microbatches: int, history: list[World]) -> None:
    owned = assign(microbatches, history[0])
    for world in history[1:]:
        before, owned = owned, adopt(owned, world)
        for worker in world.active:
            assert set(before.owned_by(worker)) <= set(owned.owned_by(worker))


@given(MICROBATCHES, worlds())
def test_adoption_evens_loads_as_far_as_orphans_go(microbatches: int, world: World) -> None:
    """All microbatches are orphans where nobody of the old world is left."""
    strangers = World(1, tuple(WorkerId(100 + w) for w in world.workers), world.capacity)

    owned = adopt(assign(microbatches, strangers), world)

    loads = Counter(owned.owners)
    counts = [loads[worker] for worker in world.active]
    assert max(counts) - min(counts) <= 1


@given(MICROBATCHES, worlds())
def test_orphans_are_adopted_in_runs_of_neighbours(microbatches: int, world: World) -> None:
    strangers = World(1, tuple(WorkerId(100 + w) for w in world.workers), world.capacity)

    owned = adopt(assign(microbatches, strangers), world)

    ranks = [world.active.index(owner) for owner in owned.owners]
    assert ranks == sorted(ranks)


@given(MICROBATCHES, worlds())
def test_assignment_depends_on_active_workers_only(microbatches: int, world: World) -> None:
    without_spares = World(world.generation, world.active, world.capacity)

    assert assign(microbatches, world) == assign(microbatches, without_spares)


@pytest.mark.parametrize("microbatches", [0, -3])
def test_world_without_microbatches_is_refused(microbatches: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {microbatches}"):
        assign(microbatches, World(1, (WorkerId(0),), 1))


def test_stranger_owns_nothing() -> None:
    assert Assignment((WorkerId(1), WorkerId(2))).owned_by(WorkerId(3)) == ()


# --- digests ------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=9), st.data())
def test_who_is_wrong_does_not_depend_on_the_order_of_ranks(
    digests: list[bytes], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(digests))))

    straight = compare_digests(digests)
    shuffled = compare_digests([digests[rank] for rank in order])

    assert shuffled.has_majority is straight.has_majority
    assert {order[rank] for rank in shuffled.minority} == set(straight.minority)


@given(st.binary(min_size=1), st.integers(1, 20))
def test_equal_digests_are_unanimous(digest: bytes, count: int) -> None:
    found = compare_digests([digest] * count)

    assert found.is_unanimous
    assert found.has_majority


@given(st.integers(1, 10))
def test_half_is_no_majority(half: int) -> None:
    found = compare_digests([b"left"] * half + [b"right"] * half)

    assert not found.has_majority
    assert found.minority == tuple(range(2 * half))


# --- the job as a sequence ----------------------------------------------------------------------

CURRICULA = st.builds(
    WorkPlan,
    steps_per_epoch=st.integers(1, 6),
    epochs=st.integers(0, 4),
    has_validation=st.booleans(),
    save_every=st.none() | st.integers(1, 7),
    verify_every=st.integers(0, 4),
    saves_epochs=st.booleans(),
    keep_every=st.none() | st.integers(1, 7),
)


def history_of(curriculum: WorkPlan) -> list[Cursor]:
    """Return every cursor of a job, from its start to its end."""
    cursors = [Cursor.start(metrics=1)]
    while (work := curriculum.next_work(cursors[-1])) is not None:
        cursor = cursors[-1]
        if work is Work.EVALUATE:
            cursors.append(cursor.after_evaluation())
        else:
            cursors.append(cursor.after_step(1, 0, np.ones(1)))
    return cursors


@given(CURRICULA)
def test_job_has_as_many_transactions_as_updates_and_validations(curriculum: WorkPlan) -> None:
    last = history_of(curriculum)[-1]

    assert last.step == curriculum.steps
    assert last.evaluations == (curriculum.epochs if curriculum.has_validation else 0)
    assert last.version == (last.step + last.evaluations) * MOST_TURNS


@given(CURRICULA)
def test_no_two_cursors_of_one_step_may_both_be_saved(curriculum: WorkPlan) -> None:
    steps = [c.step for c in history_of(curriculum) if curriculum.is_save_point(c)]

    assert len(steps) == len(set(steps))
    assert set(steps) == set(range(1, curriculum.steps + 1))


@given(CURRICULA)
def test_save_is_due_at_save_points_only(curriculum: WorkPlan) -> None:
    for cursor in history_of(curriculum):
        assert curriculum.is_save_point(cursor) or not curriculum.is_save_due(cursor)


@given(CURRICULA)
def test_memory_is_compared_at_multiples_or_never(curriculum: WorkPlan) -> None:
    checked = {c.step for c in history_of(curriculum) if curriculum.is_check_due(c)}
    every = curriculum.verify_every

    assert checked == (set(range(0, curriculum.steps + 1, every)) if every else set())
