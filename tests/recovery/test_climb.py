"""All ranks reach the top of the tree, by the tree's own additions and without deadlock."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.recovery.assignment import Assignment
from holdfast.recovery.climb import Stage, plan_climb
from holdfast.recovery.reduction import Node, ReductionPlan, children, plan_reduction, root_of
from holdfast.recovery.world import WorkerId, World


def world_of(ranks: int) -> World:
    return World(1, tuple(WorkerId(worker) for worker in range(ranks)), ranks)


def plan_of(owners: list[int], ranks: int) -> ReductionPlan:
    assignment = Assignment(tuple(WorkerId(owner) for owner in owners))
    return plan_reduction(assignment, world_of(ranks), len(owners))


def expression(node: Node) -> str:
    """Return the sum that the tree defines, with its brackets."""
    if node.is_leaf:
        return str(node.start)
    left, right = children(node)
    return f"({expression(left)}+{expression(right)})"


def climb(plan: ReductionPlan, ranks: int) -> list[str]:
    """Let all ranks go through their stages as messages come in; return what each calls value 0."""
    wires: dict[tuple[int, int], deque[tuple[int, str]]] = {}
    values = [
        {i: expression(root.node) for i, root in enumerate(plan.roots) if root.rank == rank}
        for rank in range(ranks)
    ]
    waiting = [deque(plan_climb(plan, rank, ranks)) for rank in range(ranks)]
    has_sent = [False] * ranks
    is_moving = True
    while is_moving:
        is_moving = False
        for rank in range(ranks):
            while waiting[rank]:
                stage = waiting[rank][0]
                if not has_sent[rank]:
                    for message in stage.sends:
                        wire = wires.setdefault((rank, message.peer), deque())
                        wire.append((message.value, values[rank][message.value]))
                    has_sent[rank] = True
                if not receive(stage, rank, wires, values[rank]):
                    break
                waiting[rank].popleft()
                has_sent[rank] = False
                is_moving = True
    assert not any(waiting), "some ranks wait for ever"
    assert not any(wires.values()), "some messages were never received"
    return [known[0] for known in values]


def receive(
    stage: Stage,
    rank: int,
    wires: dict[tuple[int, int], deque[tuple[int, str]]],
    values: dict[int, str],
) -> bool:
    """Finish a stage if its message is there; return whether it was."""
    if stage.arrival is not None:
        wire = wires.get((stage.arrival.peer, rank))
        if not wire:
            return False
        value, found = wire.popleft()
        assert value == stage.arrival.value, "messages of a pair were mixed up"
        values[value] = found
    if stage.addition is not None:
        left, right = stage.addition
        values[left] = f"({values[left]}+{values[right]})"
    return True


@settings(derandomize=True, deadline=None, database=None)
@given(st.data(), st.integers(1, 7))
def test_every_rank_ends_with_the_sum_of_the_tree_whoever_owns_what(
    data: st.DataObject, ranks: int
) -> None:
    owners = data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=17))

    totals = climb(plan_of(owners, ranks), ranks)

    assert totals == [expression(root_of(len(owners)))] * ranks


@pytest.mark.parametrize(("ranks", "stages"), [(1, 0), (2, 1), (4, 2), (8, 3), (64, 6)])
def test_one_root_each_takes_as_many_swaps_as_doubling(ranks: int, stages: int) -> None:
    plan = plan_of(list(range(ranks)), ranks)

    climbs = [plan_climb(plan, rank, ranks) for rank in range(ranks)]

    assert {len(climb) for climb in climbs} == {stages}
    assert all(len(stage.sends) == 1 and stage.arrival for climb in climbs for stage in climb)


def test_ranks_without_roots_are_told_by_different_ones() -> None:
    plan = plan_of([0, 1], 4)

    told = [plan_climb(plan, rank, 4)[-1] for rank in (2, 3)]

    assert [stage.arrival and stage.arrival.peer for stage in told] == [0, 1]
    assert [stage.addition for stage in told] == [None, None]
