"""The tree of a step, the sums that a worker has of it, and the bits of their total."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_sum import tree_sum, wide_leaves

from holdfast.recovery.reduction import (
    FloatVector,
    Node,
    PartialSums,
    maximal_nodes,
    plan_reduction,
    slice_bounds,
)
from holdfast.recovery.world import Assignment, WorkerId, World, adopt, assign

SIZE = 19

COUNTS = st.integers(1, 60)

OWNED = COUNTS.flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), max_size=count))
)


def world_of(workers: int) -> World:
    return World(0, tuple(map(WorkerId, range(workers))), workers)


@st.composite
def ownerships(draw: st.DrawFn) -> tuple[Assignment, World]:
    """Any owner for any microbatch, as after any history of adoptions."""
    workers = draw(st.integers(1, 8))
    owners = draw(st.lists(st.integers(0, workers - 1), min_size=1, max_size=40))
    return Assignment(tuple(map(WorkerId, owners))), world_of(workers)


@given(ownerships())
def test_roots_of_a_rank_are_its_maximal_nodes(ownership: tuple[Assignment, World]) -> None:
    assignment, world = ownership

    plan = plan_reduction(assignment, world, assignment.microbatches)

    for rank, worker in enumerate(world.workers):
        mine = tuple(root.node for root in plan.roots if root.rank == rank)
        assert mine == maximal_nodes(assignment.owned_by(worker), assignment.microbatches)


def test_order_of_additions_matters_for_the_vectors_of_these_tests() -> None:
    """If any order gave the same bits, the tests above would prove nothing."""
    leaves = wide_leaves(6, seed=1)

    one_after_another = leaves[0].copy()
    for leaf in leaves[1:]:
        one_after_another += leaf

    differing = one_after_another.view(np.uint32) != tree_sum(leaves).view(np.uint32)
    assert differing.any()


def test_plan_with_an_owner_outside_the_world_is_refused() -> None:
    assignment = assign(4, world_of(4))

    with pytest.raises(ValueError, match=r"workers \[2, 3\] own microbatches.*adopt the orphans"):
        plan_reduction(assignment, world_of(2), 4)


@given(st.integers(0, 10_000), st.integers(1, 70))
def test_slices_join_to_the_whole_and_are_even(size: int, ranks: int) -> None:
    bounds = slice_bounds(size, ranks)

    assert len(bounds) == ranks
    assert (bounds[0][0], bounds[-1][1]) == (0, size)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert all(start % 16 == 0 for start, stop in bounds if start < stop)
    blocks = [-(-(stop - start) // 16) for start, stop in bounds]
    assert max(blocks) - min(blocks) <= 1


def allocate() -> FloatVector:
    return np.full(SIZE, np.nan, dtype=np.float32)


def ones(value: float = 1.0) -> FloatVector:
    return np.full(SIZE, value, dtype=np.float32)


class Cluster:
    """Workers that compute leaves into partial sums, die, and adopt each other's work."""

    def __init__(self, leaves: list[FloatVector], workers: int) -> None:
        self.leaves = leaves
        self.world = World(0, tuple(map(WorkerId, range(workers))), workers)
        self.assignment = assign(len(leaves), self.world)
        self.sums = {worker: PartialSums(len(leaves), allocate) for worker in self.world.workers}
        self.computed: list[tuple[WorkerId, int]] = []

    def missing(self, worker: WorkerId) -> tuple[int, ...]:
        return self.sums[worker].missing(self.assignment.owned_by(worker))

    def compute(self, worker: WorkerId, leaf: int) -> None:
        buffer = self.sums[worker].buffer()
        buffer[:] = self.leaves[leaf]
        self.sums[worker].add_leaf(leaf, buffer)
        self.computed.append((worker, leaf))

    def lose(self, victims: set[WorkerId]) -> None:
        self.world = self.world.shrunk_to(set(self.world.workers) - victims)
        self.assignment = adopt(self.assignment, self.world)

    def total(self) -> FloatVector:
        plan = plan_reduction(self.assignment, self.world, len(self.leaves))
        sums: list[FloatVector] = [
            self.sums[self.world.workers[root.rank]].take([root.node])[0].copy()
            for root in plan.roots
        ]
        for left, right in plan.combines:
            sums[left] += sums[right]
        return sums[0]


@given(st.data())
def test_total_has_the_same_bits_after_any_history_of_kills_and_adoptions(
    data: st.DataObject,
) -> None:
    leaves = wide_leaves(data.draw(st.integers(1, 24)), data.draw(st.integers(0, 2**32)), SIZE)
    cluster = Cluster(leaves, data.draw(st.integers(1, 6)))

    while cluster.world.size > 1 and data.draw(st.booleans()):
        for worker in cluster.world.workers:
            todo = data.draw(st.permutations(cluster.missing(worker)))
            for leaf in todo[: data.draw(st.integers(0, len(todo)))]:
                cluster.compute(worker, leaf)
        members = cluster.world.workers
        cluster.lose(
            data.draw(st.sets(st.sampled_from(members), min_size=1, max_size=len(members) - 1))
        )
    for worker in cluster.world.workers:
        for leaf in data.draw(st.permutations(cluster.missing(worker))):
            cluster.compute(worker, leaf)

    assert cluster.total().tobytes() == tree_sum(leaves).tobytes()
    assert len(cluster.computed) == len(set(cluster.computed)), "a survivor computed a leaf twice"


def test_take_of_an_incomplete_node_says_what_is_held() -> None:
    sums = PartialSums(4, allocate)
    sums.add_leaf(0, ones())

    with pytest.raises(ValueError, match=r"node \[0, 2\) is not summed yet \(held: \[0, 1\)\)"):
        sums.take([Node(0, 2)])


@pytest.mark.parametrize("read_only", [{0}, {1}, {0, 1}])
def test_read_only_leaves_are_summed_without_being_written(read_only: set[int]) -> None:
    """Views of tensors are read-only; their memory belongs to the tensor."""
    vectors = [ones(1), ones(2)]
    for index in read_only:
        vectors[index].flags.writeable = False
    sums = PartialSums(2, allocate)

    for index, vector in enumerate(vectors):
        sums.add_leaf(index, vector)

    assert (sums.take([Node(0, 2)])[0] == 3).all()
    assert all((vectors[index] == index + 1).all() for index in read_only)


def test_sum_that_overflows_is_left_to_the_vote() -> None:
    """A step that is not finite is refused by the vote of all, not by one worker's warning."""
    sums = PartialSums(3, allocate)

    for leaf, value in enumerate((3e38, 3e38, -np.inf)):
        sums.add_leaf(leaf, ones(value))

    assert np.isnan(sums.take([Node(0, 3)])[0]).all()


def test_leaf_computed_again_replaces_the_sum_above_it() -> None:
    sums = PartialSums(4, allocate)
    for leaf in range(4):
        sums.add_leaf(leaf, ones())

    sums.add_leaf(0, ones())

    assert sums.nodes == (Node(0, 1),)
    assert sums.missing(range(4)) == (1, 2, 3)


def test_leaf_added_twice_is_refused_and_changes_nothing() -> None:
    sums = PartialSums(4, allocate)
    sums.add_leaf(0, ones())

    with pytest.raises(ValueError, match="microbatch 0 was added already"):
        sums.add_leaf(0, ones(2))

    assert (sums.take([Node(0, 1)])[0] == 1).all()


def test_leaf_in_the_buffer_of_a_held_sum_is_refused() -> None:
    sums = PartialSums(4, allocate)
    vector = ones()
    sums.add_leaf(0, vector)

    with pytest.raises(ValueError, match=r"shares memory with node \[0, 1\)"):
        sums.add_leaf(1, vector)

    assert sums.nodes == (Node(0, 1),)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(SIZE, dtype=np.float64), "flat float32 vector, got float64"),
        (np.zeros((SIZE, 1), dtype=np.float32), "flat float32 vector"),
        (np.zeros(SIZE + 1, dtype=np.float32), f"has {SIZE + 1} elements"),
    ],
)
def test_vector_that_cannot_be_added_is_refused(vector: FloatVector, message: str) -> None:
    sums = PartialSums(4, allocate)
    sums.add_leaf(0, ones())

    with pytest.raises(ValueError, match=message):
        sums.add_leaf(1, vector)

    assert sums.nodes == (Node(0, 1),)


def leaf(index: int) -> FloatVector:
    """Return a vector whose sums round: their bits tell in which order they were added."""
    return np.random.default_rng(index).normal(size=5).astype(np.float32) * np.float32(10**index)


def sums_of(microbatches: int, order: list[int]) -> PartialSums:
    sums = PartialSums(microbatches, lambda: np.empty(5, np.float32))
    for index in order:
        vector = sums.buffer()
        vector[:] = leaf(index % 7)
        sums.add_leaf(index, vector)
    return sums


@given(OWNED, st.randoms(use_true_random=False))
def test_sums_are_those_of_the_rule_in_whatever_order_leaves_come(
    ownership: tuple[int, set[int]],
    random,  # type: ignore[no-untyped-def]  # noqa: ANN001
) -> None:
    microbatches, owned = ownership
    order = sorted(owned)
    random.shuffle(order)

    sums = sums_of(microbatches, order)

    nodes = maximal_nodes(owned, microbatches)
    assert sums.nodes == nodes
    for node, vector in zip(nodes, sums.take(nodes), strict=True):
        assert vector.tobytes() == tree_sum([leaf(index % 7) for index in node.leaves]).tobytes()


@given(OWNED, st.data())
def test_missing_is_what_was_never_added(
    ownership: tuple[int, set[int]], data: st.DataObject
) -> None:
    microbatches, owned = ownership
    added = data.draw(st.sets(st.sampled_from(sorted(owned)))) if owned else set()

    sums = sums_of(microbatches, sorted(added))

    assert sums.missing(owned) == tuple(sorted(owned - added))
    assert sums.missing(()) == ()


@given(OWNED)
def test_cleared_sums_hold_nothing_and_begin_anew(ownership: tuple[int, set[int]]) -> None:
    microbatches, owned = ownership
    sums = sums_of(microbatches, sorted(owned))

    sums.clear()

    assert sums.nodes == ()
    assert sums.missing(owned) == tuple(sorted(owned))
    with pytest.raises(ValueError, match="held: nothing"):
        sums.take([Node(0, microbatches)])


@pytest.mark.parametrize("order", [range(64), range(63, -1, -1)])
def test_leaves_in_order_need_about_one_vector_for_each_level_and_later_steps_none(
    order: range,
) -> None:
    allocations: list[FloatVector] = []

    def allocate_and_count() -> FloatVector:
        allocations.append(allocate())
        return allocations[-1]

    sums = PartialSums(64, allocate_and_count)
    for _ in range(3):
        sums.clear()
        for leaf in order:
            sums.add_leaf(leaf, sums.buffer())

    assert len(allocations) <= 7  # 64 leaves are six levels, and one vector is being filled
