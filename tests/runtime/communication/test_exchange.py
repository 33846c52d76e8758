"""The exact sum, over the fake: the same bits whoever owns what, and roots that survive deaths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from holdfast.recovery.assignment import Assignment
from holdfast.recovery.partial import PartialSums
from holdfast.recovery.reduction import Node, children, maximal_nodes, plan_reduction, root_of
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime import exchange as exchange_module
from holdfast.runtime.communicator import WorldBroken
from holdfast.runtime.exchange import TreeExchange
from holdfast.runtime.fake_communicator import FakeCommunicator, run_world
from holdfast.runtime.replica import FloatVector

SMALL, ODD, LARGE = 3, 1003, exchange_module.SMALL_FLOATS + 1237
"""Below the threshold; the same, divisible by nothing; above the threshold, by nothing."""


def leaves_of(microbatches: int, size: int, seed: int) -> list[FloatVector]:
    """Return leaves whose sums depend on every pair that is added."""
    dice = np.random.default_rng(seed)
    scale = np.float32(10) ** dice.integers(-4, 5, (microbatches, 1)).astype(np.float32)
    return list(dice.normal(size=(microbatches, size)).astype(np.float32) * scale)


def recursive_sum(node: Node, leaves: Sequence[FloatVector]) -> FloatVector:
    if node.is_leaf:
        return leaves[node.start]
    left, right = children(node)
    return recursive_sum(left, leaves) + recursive_sum(right, leaves)


def roots_of(
    assignment: Assignment, worker: WorkerId, leaves: Sequence[FloatVector]
) -> tuple[FloatVector, ...]:
    """Fold what ``worker`` owns, as a transaction does."""
    owned = assignment.owned_by(worker)
    sums = PartialSums(len(leaves), lambda: np.empty(len(leaves[0]), np.float32))
    for index in owned:
        sums.add_leaf(index, leaves[index].copy())
    return sums.take(maximal_nodes(owned, len(leaves)))


def random_assignment(dice: random.Random, world: World, microbatches: int) -> Assignment:
    """Let anybody own anything; some may own nothing, as spares do."""
    owners = dice.sample(world.workers, dice.randint(1, world.size))
    return Assignment(tuple(dice.choice(owners) for _ in range(microbatches)))


def check_one(ranks: int, microbatches: int, size: int, seed: int) -> None:
    dice = random.Random(seed)
    world = World(1, tuple(WorkerId(10 + rank) for rank in range(ranks)), ranks)
    assignment = random_assignment(dice, world, microbatches)
    plan = plan_reduction(assignment, world, microbatches)
    rounds = [leaves_of(microbatches, size, seed + number) for number in range(2)]

    def program(communicator: FakeCommunicator) -> list[bytes]:
        exchange = TreeExchange(communicator, plan, size)
        totals = []
        for leaves in rounds:
            roots = roots_of(assignment, world.workers[communicator.rank], leaves)
            before = [root.tobytes() for root in roots]
            totals.append(exchange.total(roots).tobytes())
            assert [root.tobytes() for root in roots] == before
            communicator.agree(1)
        communicator.leave()
        return totals

    expected = [recursive_sum(root_of(microbatches), leaves).tobytes() for leaves in rounds]
    for totals in run_world(ranks, program, seed=seed):
        assert totals == expected, (ranks, microbatches, size, seed)


@pytest.mark.parametrize("ranks", range(1, 7))
@pytest.mark.parametrize("size", [SMALL, ODD])
def test_small_sums_have_the_bits_of_the_tree(ranks: int, size: int) -> None:
    for microbatches in range(1, 14):
        check_one(ranks, microbatches, size, seed=100 * ranks + microbatches)


@pytest.mark.parametrize("ranks", range(1, 7))
def test_large_sums_have_the_bits_of_the_tree(ranks: int) -> None:
    for microbatches in range(1, 14):
        check_one(ranks, microbatches, LARGE, seed=100 * ranks + microbatches)


@pytest.mark.parametrize("ranks", range(2, 7))
def test_short_vectors_on_the_way_of_long_ones(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ranks' slices are empty then."""
    monkeypatch.setattr(exchange_module, "SMALL_FLOATS", 0)
    for microbatches, size in itertools.product((1, 5, 8), (1, 16, 17, 100)):
        check_one(ranks, microbatches, size, seed=100 * ranks + microbatches)


@pytest.mark.parametrize("size", [ODD, LARGE])
def test_death_at_any_moment_leaves_the_roots_and_the_next_sum_alone(size: int) -> None:
    """Survivors that voted no have their roots; whoever got a total has the right one."""
    ranks, microbatches = 3, 7
    world = World(1, tuple(map(WorkerId, range(ranks))), ranks)
    assignment = Assignment(tuple(WorkerId(index % ranks) for index in range(microbatches)))
    plan = plan_reduction(assignment, world, microbatches)
    leaves = leaves_of(microbatches, size, seed=5)
    expected = recursive_sum(root_of(microbatches), leaves).tobytes()

    def program(communicator: FakeCommunicator) -> str:
        exchange = TreeExchange(communicator, plan, size)
        roots = roots_of(assignment, WorkerId(communicator.rank), leaves)
        before = [root.tobytes() for root in roots]
        try:
            ending = "total"
            assert exchange.total(roots).tobytes() == expected
        except WorldBroken:
            ending = "broken"
        assert [root.tobytes() for root in roots] == before
        communicator.leave()
        return ending

    endings = set()
    for moment in range(1, 40):
        survivors = run_world(ranks, program, seed=moment, deaths={1: moment})
        endings |= {survivors[0], survivors[2]}

    assert endings == {"total", "broken"}


@pytest.mark.parametrize("size", [ODD, LARGE])
def test_every_rank_visits_the_site_while_messages_are_in_the_air(size: int) -> None:
    world = World(1, tuple(map(WorkerId, range(3))), 3)
    assignment = Assignment(tuple(map(WorkerId, range(3))))
    plan = plan_reduction(assignment, world, 3)
    leaves = leaves_of(3, size, seed=1)
    visits: list[int] = []

    def program(communicator: FakeCommunicator) -> None:
        roots = roots_of(assignment, WorkerId(communicator.rank), leaves)
        TreeExchange(communicator, plan, size).total(roots, lambda: visits.append(1))
        communicator.leave()

    run_world(3, program)

    assert len(visits) == 3


@pytest.mark.parametrize("size", [ODD, LARGE])
def test_sum_that_overflows_warns_nobody_and_is_seen_by_its_slice(size: int) -> None:
    """Warnings are errors here; the vote joins what the ranks have seen."""
    world = World(1, tuple(map(WorkerId, range(2))), 2)
    assignment = Assignment((WorkerId(0), WorkerId(1)))
    plan = plan_reduction(assignment, world, 2)
    huge = np.zeros(size, np.float32)
    huge[-1] = np.finfo(np.float32).max

    def program(communicator: FakeCommunicator) -> bool:
        exchange = TreeExchange(communicator, plan, size)
        is_finite = exchange.is_finite(exchange.total([huge]))
        communicator.leave()
        return is_finite

    assert run_world(2, program) == [True, False]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_seen_wherever_it_stands(value: float) -> None:
    world = World(1, (WorkerId(0),), 1)
    plan = plan_reduction(Assignment((WorkerId(0),)), world, 1)

    def program(communicator: FakeCommunicator) -> list[bool]:
        exchange = TreeExchange(communicator, plan, 20)
        seen = []
        for place in range(20):
            total = np.full(20, np.finfo(np.float32).max)  # finite, but not its sum
            seen.append(exchange.is_finite(total))
            total[place] = value
            seen.append(exchange.is_finite(total))
        return seen

    assert run_world(1, program) == [[True, False] * 20]
