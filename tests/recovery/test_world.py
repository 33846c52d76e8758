"""Worlds that shrink, and the owners of their microbatches."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(shrinking())
def test_generations_ascend_and_survivors_keep_their_order(history: list[World]) -> None:
    for before, after in itertools.pairwise(history):
        assert after.generation == before.generation + 1
        assert after.capacity == before.capacity
        assert set(after.workers) < set(before.workers)
        assert list(after.workers) == [w for w in before.workers if w in after.workers]


def test_survivor_that_was_no_member_is_refused() -> None:
    world = World(1, (WorkerId(0), WorkerId(1)), 2)

    with pytest.raises(ValueError, match=r"workers \[5\] are not in the world"):
        world.shrunk_to({WorkerId(1), WorkerId(5)})


@given(MICROBATCHES, shrinking())
def test_after_any_deaths_every_microbatch_has_one_active_owner(
    microbatches: int, history: list[World]
) -> None:
    owned = assign(microbatches, history[0])
    for world in history[1:]:
        owned = adopt(owned, world)
        parts = [owned.owned_by(worker) for worker in world.active]
        assert sorted(itertools.chain(*parts)) == list(range(microbatches))
        assert all(owned.owned_by(spare) == () for spare in world.workers[world.capacity :])


@given(MICROBATCHES, worlds())
def test_orphans_are_adopted_in_runs_of_neighbours(microbatches: int, world: World) -> None:
    strangers = World(1, tuple(WorkerId(100 + w) for w in world.workers), world.capacity)

    owned = adopt(assign(microbatches, strangers), world)

    ranks = [world.active.index(owner) for owner in owned.owners]
    assert ranks == sorted(ranks)


def world_of(*workers: int, capacity: int | None = None, generation: int = 0) -> World:
    ids = tuple(WorkerId(worker) for worker in workers)
    return World(generation, ids, capacity or len(ids))


def owners_of(assignment: Assignment) -> list[int]:
    return list(map(int, assignment.owners))


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


@st.composite
def places(draw: st.DrawFn) -> dict[WorkerId, str]:
    """A host for every worker of ``worlds``."""
    return {WorkerId(worker): draw(st.sampled_from("abc")) for worker in range(31)}


def on_hosts(**hosts: tuple[int, ...]) -> dict[WorkerId, str]:
    return {WorkerId(worker): name for name, workers in hosts.items() for worker in workers}


@pytest.mark.parametrize(
    ("before", "after", "hosts", "expected"),
    [
        pytest.param(
            world_of(0, 1, 2, 3),
            world_of(0, 1, 2),
            on_hosts(a=(0, 1), b=(2, 3)),
            [0, 0, 1, 1, 2, 2, 2, 0],
            id="the neighbour of the dead first",
        ),
        pytest.param(
            world_of(0, 1, 2, 3),
            world_of(1, 2, 3),
            on_hosts(a=(0, 3), b=(1, 2)),
            [3, 1, 1, 1, 2, 2, 3, 3],
            id="whatever its rank",
        ),
        pytest.param(
            world_of(0, 1, 2, 3),
            world_of(0, 1),
            on_hosts(a=(0, 1), b=(2, 3)),
            [0, 0, 1, 1, 0, 0, 1, 1],
            id="nobody is left on the host",
        ),
        pytest.param(
            world_of(0, 1, 2, 3, 4, capacity=4),
            world_of(0, 1, 2, 4, capacity=4),
            on_hosts(a=(0, 1, 4), b=(2, 3)),
            [0, 0, 1, 1, 2, 2, 4, 4],
            id="a spare owns nothing, so it comes before neighbours",
        ),
        pytest.param(
            world_of(0, 1, 2, 3, 4, 5),
            world_of(0, 2, 3, 5),
            on_hosts(a=(0, 1, 2), b=(3, 4, 5)),
            [0, 0, 2, 3, 3, 5],
            id="a death on each of two hosts",
        ),
    ],
)
def test_orphans_stay_on_their_host_where_loads_allow(
    before: World, after: World, hosts: dict[WorkerId, str], expected: list[int]
) -> None:
    assignment = assign(len(expected), before)

    assert owners_of(adopt(assignment, after, hosts)) == expected


@given(MICROBATCHES, shrinking(), places())
def test_hosts_change_no_bound_of_adoption(
    microbatches: int, history: list[World], hosts: dict[WorkerId, str]
) -> None:
    """Loads, survivors' microbatches and the end of all deaths are as without hosts."""
    before, after = history[0], history[-1]
    assignment = assign(microbatches, before)

    plain, owned = adopt(assignment, after), adopt(assignment, after, hosts)

    loads, plain_loads = Counter(owned.owners), Counter(plain.owners)
    assert sorted(loads[w] for w in after.active) == sorted(plain_loads[w] for w in after.active)
    for worker in after.active:
        assert set(assignment.owned_by(worker)) <= set(owned.owned_by(worker))
    lowest = min(loads[worker] for worker in after.active)
    for worker in after.active:
        if loads[worker] > len(assignment.owned_by(worker)):
            assert loads[worker] <= lowest + 1
    assert adopt(owned, after, hosts) == owned


@given(MICROBATCHES, shrinking(), places())
def test_orphan_leaves_its_host_only_if_no_adopter_is_there_for_it(
    microbatches: int, history: list[World], hosts: dict[WorkerId, str]
) -> None:
    before, after = history[0], history[-1]
    assignment = assign(microbatches, before)
    owned = adopt(assignment, after, hosts)
    moved = [m for m in range(microbatches) if owned.owners[m] != assignment.owners[m]]

    came = Counter(hosts[owned.owners[m]] for m in moved)
    left = Counter(hosts[assignment.owners[m]] for m in moved)
    stayed = Counter(
        hosts[owned.owners[m]]
        for m in moved
        if hosts[owned.owners[m]] == hosts[assignment.owners[m]]
    )

    assert stayed == came & left


def test_ten_thousand_workers_are_assigned_and_adopted() -> None:
    before = world_of(*range(10_100), capacity=10_000)
    after = before.shrunk_to(set(before.workers[100:]))

    adopted = adopt(assign(20_000, before), after)

    assert set(Counter(adopted.owners).values()) == {2}
