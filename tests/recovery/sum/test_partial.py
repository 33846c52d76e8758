from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_sum import tree_sum

from holdfast.recovery.errors import LeafMissing
from holdfast.recovery.reduction import (
    FloatVector,
    Node,
    PartialSums,
    maximal_nodes,
    plan_reduction,
)
from holdfast.recovery.world import WorkerId, World, adopt, assign

SIZE = 19


def allocate() -> FloatVector:
    return np.full(SIZE, np.nan, dtype=np.float32)


def counting(allocations: list[int]) -> Callable[[], FloatVector]:
    def allocate_and_count() -> FloatVector:
        allocations[0] += 1
        return allocate()

    return allocate_and_count


def wide_leaves(count: int, seed: int) -> list[FloatVector]:
    """Random vectors, whose elements span two powers of ten at first and sixty at last."""
    generator = np.random.default_rng(seed)
    scales = 10.0 ** (generator.uniform(-1, 1, (count, SIZE)) * np.linspace(1, 30, SIZE))
    vectors: list[FloatVector] = list(
        (generator.standard_normal((count, SIZE)) * scales).astype("f4")
    )
    return vectors


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
    leaves = wide_leaves(data.draw(st.integers(1, 24)), data.draw(st.integers(0, 2**32)))
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


def test_survivor_computes_only_what_it_adopts() -> None:
    cluster = Cluster(wide_leaves(6, seed=3), workers=3)
    for worker in cluster.world.workers:
        for leaf in cluster.missing(worker):
            cluster.compute(worker, leaf)

    cluster.lose({WorkerId(1)})

    assert cluster.missing(WorkerId(0)) == (2,)
    assert cluster.missing(WorkerId(2)) == (3,)


@given(st.integers(1, 40), st.data())
def test_all_owned_leaves_fold_into_exactly_the_maximal_nodes(
    microbatches: int, data: st.DataObject
) -> None:
    owned = data.draw(st.sets(st.integers(0, microbatches - 1)))
    sums = PartialSums(microbatches, allocate)

    for leaf in data.draw(st.permutations(sorted(owned))):
        sums.add_leaf(leaf, ones())

    assert sums.nodes == maximal_nodes(owned, microbatches)
    assert sums.missing(owned) == ()
    for node, vector in zip(sums.nodes, sums.take(sums.nodes), strict=True):
        assert (vector == len(node.leaves)).all()


def test_take_lends_the_same_sums_again_for_another_attempt() -> None:
    sums = PartialSums(2, allocate)
    sums.add_leaf(0, ones())
    sums.add_leaf(1, ones(2))

    first = sums.take([Node(0, 2)])
    second = sums.take([Node(0, 2)])

    assert first[0] is second[0]
    assert (second[0] == 3).all()


def test_take_of_an_incomplete_node_says_what_is_held() -> None:
    sums = PartialSums(4, allocate)
    sums.add_leaf(0, ones())

    with pytest.raises(LeafMissing, match=r"node \[0, 2\) is not summed yet \(held: \[0, 1\)\)"):
        sums.take([Node(0, 2)])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parent_reuses_the_buffer_of_its_left_child(order: tuple[int, int]) -> None:
    sums = PartialSums(2, allocate)
    vectors = ones(), ones(2)

    for leaf in order:
        sums.add_leaf(leaf, vectors[leaf])

    assert sums.take([Node(0, 2)])[0] is vectors[0]
    assert (vectors[1] == 2).all()


@pytest.mark.parametrize("order", [range(64), range(63, -1, -1)])
def test_leaves_in_order_need_about_one_vector_for_each_level(order: range) -> None:
    allocations = [0]
    sums = PartialSums(64, counting(allocations))

    for leaf in order:
        sums.add_leaf(leaf, sums.buffer())

    assert allocations[0] <= 7  # 64 leaves are six levels, and one vector is being filled


def test_later_steps_allocate_nothing() -> None:
    allocations = [0]
    sums = PartialSums(8, counting(allocations))
    for _ in range(3):
        sums.clear()
        after_first_step = allocations[0]
        for leaf in range(8):
            sums.add_leaf(leaf, sums.buffer())

    assert allocations[0] == after_first_step


def test_vectors_of_a_caller_that_takes_none_back_are_not_hoarded() -> None:
    allocations = [0]
    sums = PartialSums(8, counting(allocations))
    for leaf in range(8):
        sums.add_leaf(leaf, ones())
    sums.clear()

    sums.buffer()

    assert allocations[0] == 1


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


def test_node_beyond_the_owned_leaves_is_missing() -> None:
    """A worker that gave microbatches away cannot use a sum that contains them."""
    sums = PartialSums(4, allocate)
    sums.add_leaf(0, ones())
    sums.add_leaf(1, ones())

    assert sums.missing((0, 1, 2)) == (2,)
    assert sums.missing((0,)) == (0,)


def test_leaf_computed_again_replaces_the_sum_above_it() -> None:
    sums = PartialSums(4, allocate)
    for leaf in range(4):
        sums.add_leaf(leaf, ones())

    sums.add_leaf(0, ones())

    assert sums.nodes == (Node(0, 1),)
    assert sums.missing(range(4)) == (1, 2, 3)


def test_clear_forgets_every_sum() -> None:
    sums = PartialSums(4, allocate)
    sums.add_leaf(2, ones())

    sums.clear()

    assert sums.nodes == ()
    assert sums.missing((2, 3)) == (2, 3)


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


@pytest.mark.parametrize("leaf", [-1, 4])
def test_leaf_outside_the_tree_is_refused(leaf: int) -> None:
    with pytest.raises(ValueError, match="is not one of 4"):
        PartialSums(4, allocate).add_leaf(leaf, ones())


def test_sums_of_no_microbatches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        PartialSums(0, allocate)
