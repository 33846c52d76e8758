from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_sum import tree_sum

from holdfast.recovery.reduction import (
    Node,
    ReductionPlan,
    Root,
    children,
    maximal_nodes,
    path_to,
    plan_reduction,
    root_of,
    slice_bounds,
)
from holdfast.recovery.world import Assignment, WorkerId, World, assign

Vector = npt.NDArray[np.float32]


def world_of(workers: int) -> World:
    return World(0, tuple(map(WorkerId, range(workers))), workers)


def wide_leaves(count: int, seed: int) -> list[Vector]:
    """Random vectors, whose elements span two powers of ten at first and sixty at last."""
    generator = np.random.default_rng(seed)
    scales = 10.0 ** (generator.uniform(-1, 1, (count, 33)) * np.linspace(1, 30, 33))
    return list((generator.standard_normal((count, 33)) * scales).astype(np.float32))


def total_by_plan(plan: ReductionPlan, leaves: list[Vector]) -> Vector:
    sums: list[Vector] = [
        tree_sum(leaves[root.node.start : root.node.stop]).copy() for root in plan.roots
    ]
    for left, right in plan.combines:
        sums[left] += sums[right]
    return sums[0]


@st.composite
def ownerships(draw: st.DrawFn) -> tuple[Assignment, World]:
    """Any owner for any microbatch, as after any history of adoptions."""
    workers = draw(st.integers(1, 8))
    owners = draw(st.lists(st.integers(0, workers - 1), min_size=1, max_size=40))
    return Assignment(tuple(map(WorkerId, owners))), world_of(workers)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (Node(0, 2), (Node(0, 1), Node(1, 2))),
        (Node(0, 3), (Node(0, 2), Node(2, 3))),
        (Node(0, 4), (Node(0, 2), Node(2, 4))),
        (Node(0, 6), (Node(0, 4), Node(4, 6))),
        (Node(4, 6), (Node(4, 5), Node(5, 6))),
        (Node(8, 15), (Node(8, 12), Node(12, 15))),
    ],
)
def test_node_splits_at_largest_power_of_two(node: Node, expected: tuple[Node, Node]) -> None:
    assert children(node) == expected


def test_leaf_has_no_children() -> None:
    with pytest.raises(ValueError, match="microbatch 3 is a leaf"):
        children(Node(3, 4))


@pytest.mark.parametrize(("start", "stop"), [(2, 2), (3, 1), (-1, 4)])
def test_node_without_leaves_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="a node must have leaves"):
        Node(start, stop)


@given(st.integers(1, 70), st.data())
def test_path_leads_from_root_through_children_to_leaf(
    microbatches: int, data: st.DataObject
) -> None:
    leaf = data.draw(st.integers(0, microbatches - 1))

    path = path_to(leaf, microbatches)

    assert path[0] == root_of(microbatches)
    assert path[-1] == Node(leaf, leaf + 1)
    assert all(below in children(above) for above, below in itertools.pairwise(path))


@pytest.mark.parametrize("leaf", [-1, 4])
def test_path_to_a_leaf_outside_the_tree_is_refused(leaf: int) -> None:
    with pytest.raises(ValueError, match="is not one of 4"):
        path_to(leaf, 4)


@pytest.mark.parametrize(
    ("owned", "microbatches", "expected"),
    [
        ((), 6, ()),
        ((0, 1, 2, 3, 4, 5), 6, (Node(0, 6),)),
        ((0, 1, 2), 6, (Node(0, 2), Node(2, 3))),
        ((1, 2, 3, 4), 6, (Node(1, 2), Node(2, 4), Node(4, 5))),
        ((5, 4), 6, (Node(4, 6),)),
        ((4,), 5, (Node(4, 5),)),
    ],
)
def test_maximal_nodes_are_the_largest_owned_subtrees(
    owned: tuple[int, ...], microbatches: int, expected: tuple[Node, ...]
) -> None:
    assert maximal_nodes(owned, microbatches) == expected


def test_maximal_nodes_refuse_leaves_outside_the_tree() -> None:
    with pytest.raises(ValueError, match="not all among 4"):
        maximal_nodes((3, 4), 4)


def test_plan_of_three_workers_and_six_microbatches() -> None:
    world = world_of(3)

    plan = plan_reduction(assign(6, world), world, 6)

    assert plan.roots == (Root(Node(0, 2), 0), Root(Node(2, 4), 1), Root(Node(4, 6), 2))
    assert plan.combines == ((0, 1), (0, 2))


def test_plan_names_ranks_and_not_worker_ids() -> None:
    world = World(3, (WorkerId(2), WorkerId(9)), 2)

    plan = plan_reduction(assign(2, world), world, 2)

    assert [root.rank for root in plan.roots] == [0, 1]


@given(ownerships())
def test_roots_of_a_rank_are_its_maximal_nodes(ownership: tuple[Assignment, World]) -> None:
    assignment, world = ownership

    plan = plan_reduction(assignment, world, assignment.microbatches)

    for rank, worker in enumerate(world.workers):
        mine = tuple(root.node for root in plan.roots if root.rank == rank)
        assert mine == maximal_nodes(assignment.owned_by(worker), assignment.microbatches)


@given(ownerships())
def test_roots_cover_every_leaf_once_and_each_but_the_first_is_folded_once(
    ownership: tuple[Assignment, World],
) -> None:
    assignment, world = ownership

    plan = plan_reduction(assignment, world, assignment.microbatches)

    leaves = [leaf for root in plan.roots for leaf in root.node.leaves]
    assert leaves == list(range(assignment.microbatches))
    assert sorted(right for _, right in plan.combines) == list(range(1, len(plan.roots)))


@given(ownerships(), st.integers(0, 2**32))
def test_total_has_the_same_bits_whoever_owns_what(
    ownership: tuple[Assignment, World], seed: int
) -> None:
    assignment, world = ownership
    leaves = wide_leaves(assignment.microbatches, seed)

    plan = plan_reduction(assignment, world, assignment.microbatches)

    assert total_by_plan(plan, leaves).tobytes() == tree_sum(leaves).tobytes()


@given(st.integers(1, 33), st.integers(1, 9), st.integers(0, 2**32))
def test_total_has_the_same_bits_for_every_world_size(
    microbatches: int, workers: int, seed: int
) -> None:
    world = world_of(workers)
    leaves = wide_leaves(microbatches, seed)

    plan = plan_reduction(assign(microbatches, world), world, microbatches)

    assert total_by_plan(plan, leaves).tobytes() == tree_sum(leaves).tobytes()


def test_order_of_additions_matters_for_the_vectors_of_these_tests() -> None:
    """If any order gave the same bits, the tests above would prove nothing."""
    leaves = wide_leaves(6, seed=1)

    one_after_another = leaves[0].copy()
    for leaf in leaves[1:]:
        one_after_another += leaf

    differing = one_after_another.view(np.uint32) != tree_sum(leaves).view(np.uint32)
    assert differing.any()


def test_plan_for_ten_thousand_ranks_is_complete() -> None:
    world = world_of(10_000)

    plan = plan_reduction(assign(25_000, world), world, 25_000)

    assert {root.rank for root in plan.roots} == set(range(10_000))
    assert len(plan.combines) == len(plan.roots) - 1


def test_plan_with_an_owner_outside_the_world_is_refused() -> None:
    assignment = assign(4, world_of(4))

    with pytest.raises(ValueError, match=r"workers \[2, 3\] own microbatches.*adopt the orphans"):
        plan_reduction(assignment, world_of(2), 4)


def test_plan_for_another_number_of_microbatches_is_refused() -> None:
    world = world_of(2)

    with pytest.raises(ValueError, match="has 4 microbatches, expected 5"):
        plan_reduction(assign(4, world), world, 5)


@pytest.mark.parametrize(
    ("size", "ranks", "expected"),
    [
        (64, 2, ((0, 32), (32, 64))),
        (100, 3, ((0, 32), (32, 64), (64, 100))),
        (5, 3, ((0, 0), (0, 0), (0, 5))),
        (0, 2, ((0, 0), (0, 0))),
    ],
)
def test_slices_are_cut_at_cache_lines(
    size: int, ranks: int, expected: tuple[tuple[int, int], ...]
) -> None:
    assert slice_bounds(size, ranks) == expected


@given(st.integers(0, 10_000), st.integers(1, 70), st.integers(1, 64))
def test_slices_join_to_the_whole_and_are_even(size: int, ranks: int, align: int) -> None:
    bounds = slice_bounds(size, ranks, align)

    assert len(bounds) == ranks
    assert (bounds[0][0], bounds[-1][1]) == (0, size)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert all(start % align == 0 for start, stop in bounds if start < stop)
    blocks = [-(-(stop - start) // align) for start, stop in bounds]
    assert max(blocks) - min(blocks) <= 1


@pytest.mark.parametrize(("size", "ranks", "align"), [(-1, 2, 16), (8, 0, 16), (8, 2, 0)])
def test_slices_that_cannot_be_cut_are_refused(size: int, ranks: int, align: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        slice_bounds(size, ranks, align)
