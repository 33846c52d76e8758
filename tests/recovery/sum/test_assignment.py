from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.world import Assignment, WorkerId, World, adopt, assign


def world_of(*workers: int, capacity: int | None = None, generation: int = 0) -> World:
    ids = tuple(WorkerId(worker) for worker in workers)
    return World(generation, ids, capacity or len(ids))


def owners_of(assignment: Assignment) -> list[int]:
    return list(map(int, assignment.owners))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    workers = draw(st.sets(st.integers(0, 30), min_size=1, max_size=12))
    return world_of(*sorted(workers), capacity=draw(st.integers(1, len(workers))))


@st.composite
def shrinkings(draw: st.DrawFn) -> tuple[World, World]:
    before = draw(worlds())
    survivors = draw(st.sets(st.sampled_from(before.workers), min_size=1))
    return before, before.shrunk_to(survivors)


@pytest.mark.parametrize(
    ("microbatches", "workers", "expected"),
    [
        (4, 4, [0, 1, 2, 3]),
        (4, 1, [0, 0, 0, 0]),
        (6, 4, [0, 0, 1, 1, 2, 3]),
        (7, 3, [0, 0, 0, 1, 1, 2, 2]),
        (2, 4, [0, 1]),
    ],
)
def test_workers_get_balanced_runs(microbatches: int, workers: int, expected: list[int]) -> None:
    assert owners_of(assign(microbatches, world_of(*range(workers)))) == expected


def test_spare_owns_nothing() -> None:
    assignment = assign(4, world_of(0, 1, 2, capacity=2))

    assert assignment.owned_by(WorkerId(0)) == (0, 1)
    assert assignment.owned_by(WorkerId(1)) == (2, 3)
    assert assignment.owned_by(WorkerId(2)) == ()


@given(st.integers(1, 200), worlds())
def test_loads_differ_by_at_most_one_and_runs_are_in_rank_order(
    microbatches: int, world: World
) -> None:
    assignment = assign(microbatches, world)

    loads = [len(assignment.owned_by(worker)) for worker in world.active]
    assert sum(loads) == microbatches == assignment.microbatches
    assert max(loads) - min(loads) <= 1
    assert list(assignment.owners) == sorted(assignment.owners)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(world_of(0, 1, 2), world_of(0, 2), [0, 0, 0, 2, 2, 2], id="survivors share"),
        pytest.param(world_of(0, 1, 2), world_of(2), [2] * 6, id="last survivor takes all"),
        pytest.param(
            world_of(0, 1, 2, 3, capacity=3),
            world_of(0, 2, 3, capacity=3),
            [0, 0, 3, 3, 2, 2],
            id="spare steps in",
        ),
        pytest.param(
            world_of(0, 1, 2, 3, capacity=3),
            world_of(0, 1, 2, capacity=3),
            [0, 0, 1, 1, 2, 2],
            id="spare dies",
        ),
        pytest.param(
            world_of(0, 1, 2),
            world_of(0, 2, 7, capacity=3),
            [0, 0, 7, 7, 2, 2],
            id="respawned worker takes the orphans",
        ),
        pytest.param(world_of(0, 1), world_of(5, 6), [5, 5, 5, 6, 6, 6], id="nobody is left"),
    ],
)
def test_orphans_go_to_those_with_the_fewest(
    before: World, after: World, expected: list[int]
) -> None:
    assignment = assign(6, before)

    assert owners_of(adopt(assignment, after)) == expected


@given(st.integers(1, 60), shrinkings())
def test_adoption_moves_orphans_only(microbatches: int, change: tuple[World, World]) -> None:
    before, after = change
    assignment = assign(microbatches, before)

    adopted = adopt(assignment, after)

    assert adopted.microbatches == microbatches
    assert set(adopted.owners) <= set(after.active)
    for old, new in zip(assignment.owners, adopted.owners, strict=True):
        assert new == old or old not in after.active


@given(st.integers(1, 60), shrinkings())
def test_no_adopter_ends_above_a_worker_that_could_have_adopted(
    microbatches: int, change: tuple[World, World]
) -> None:
    before, after = change
    assignment = assign(microbatches, before)

    loads = Counter(adopt(assignment, after).owners)

    lowest = min(loads[worker] for worker in after.active)
    for worker in after.active:
        if loads[worker] > len(assignment.owned_by(worker)):
            assert loads[worker] <= lowest + 1


def test_adoption_without_orphans_changes_nothing() -> None:
    assignment = assign(5, world_of(0, 1))

    assert adopt(assignment, world_of(0, 1, generation=1)) == assignment


def test_ten_thousand_workers_are_assigned_and_adopted() -> None:
    before = world_of(*range(10_100), capacity=10_000)
    after = before.shrunk_to(set(before.workers[100:]))

    adopted = adopt(assign(20_000, before), after)

    assert set(Counter(adopted.owners).values()) == {2}


def test_assignment_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        assign(0, world_of(0))
    with pytest.raises(ValueError, match="at least one microbatch"):
        Assignment(())
