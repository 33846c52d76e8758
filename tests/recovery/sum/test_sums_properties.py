"""Whatever is summed: the same pairs, the same samples, each of them once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import LeafMissing
from holdfast.recovery.ledger import (
    LANES,
    FingerprintTable,
    Ledger,
    fingerprint,
    from_lanes,
    write_lanes,
)
from holdfast.recovery.order import WORD, SampleOrder, SequentialOrder, chain, splitmix64
from holdfast.recovery.reduction import (
    FloatVector,
    Node,
    PartialSums,
    children,
    maximal_nodes,
    path_to,
    plan_reduction,
    root_of,
    slice_bounds,
)
from holdfast.recovery.world import WorkerId, World, assign

COUNTS = st.integers(1, 60)
OWNED = COUNTS.flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), max_size=count))
)


def nodes_of(microbatches: int) -> list[Node]:
    """Return all nodes of a tree, parents before their children."""
    found = [root_of(microbatches)]
    for node in found:
        if not node.is_leaf:
            found += children(node)
    return found


# --- the tree -----------------------------------------------------------------------------------


@given(COUNTS)
def test_tree_has_one_node_fewer_above_its_leaves_than_leaves(microbatches: int) -> None:
    nodes = nodes_of(microbatches)

    assert len(nodes) == 2 * microbatches - 1
    assert sorted(node.start for node in nodes if node.is_leaf) == list(range(microbatches))


@given(COUNTS)
def test_left_child_is_complete_and_no_smaller_than_the_right(microbatches: int) -> None:
    for node in nodes_of(microbatches):
        if not node.is_leaf:
            left, right = children(node)
            assert (left.start, left.stop, right.stop) == (node.start, right.start, node.stop)
            assert len(left.leaves) & (len(left.leaves) - 1) == 0
            assert len(left.leaves) >= len(right.leaves)


@given(COUNTS)
def test_no_leaf_is_deeper_than_the_logarithm(microbatches: int) -> None:
    deepest = max(len(path_to(leaf, microbatches)) for leaf in range(microbatches))

    assert deepest == (microbatches - 1).bit_length() + 1


@given(OWNED)
def test_maximal_nodes_are_of_the_tree_disjoint_and_without_siblings(
    ownership: tuple[int, set[int]],
) -> None:
    microbatches, owned = ownership
    tree = set(nodes_of(microbatches))

    found = maximal_nodes(owned, microbatches)

    assert set(found) <= tree
    assert list(itertools.chain(*(node.leaves for node in found))) == sorted(owned)
    parents = [node for node in tree if not node.is_leaf]
    assert not any(set(children(parent)) <= set(found) for parent in parents)


@given(OWNED)
def test_run_of_neighbours_folds_into_few_subtrees(ownership: tuple[int, set[int]]) -> None:
    """At most two on each level, which is why an assignment gives runs."""
    microbatches, owned = ownership
    first, last = min(owned, default=0), max(owned, default=0)

    found = maximal_nodes(range(first, last + 1), microbatches)

    assert len(found) <= 2 * max(1, (microbatches - 1).bit_length())


@given(COUNTS, st.integers(1, 9))
def test_plan_has_one_combine_fewer_than_roots(microbatches: int, workers: int) -> None:
    world = World(1, tuple(map(WorkerId, range(workers))), workers)

    plan = plan_reduction(assign(microbatches, world), world, microbatches)

    assert len(plan.combines) == len(plan.roots) - 1
    assert all(left < right for left, right in plan.combines)
    assert {root.rank for root in plan.roots} == set(range(min(workers, microbatches)))


@given(st.integers(0, 5000), st.integers(1, 40), st.integers(1, 64))
def test_inner_cuts_lie_at_blocks(size: int, ranks: int, align: int) -> None:
    bounds = slice_bounds(size, ranks, align)

    assert len(bounds) == ranks
    assert all(stop % align == 0 or stop == size for _, stop in bounds)


@pytest.mark.parametrize(
    ("node", "text"), [(Node(0, 1), "[0, 1)"), (Node(4, 7), "[4, 7)")], ids=["leaf", "inner"]
)
def test_node_is_written_as_its_leaves(node: Node, text: str) -> None:
    assert str(node) == text


# --- sums in any order --------------------------------------------------------------------------


def leaf(index: int) -> FloatVector:
    """Return a vector whose sums round: their bits tell in which order they were added."""
    return np.random.default_rng(index).normal(size=5).astype(np.float32) * np.float32(10**index)


def direct(node: Node) -> FloatVector:
    """Return the sum of a node by the rule alone."""
    if node.is_leaf:
        return leaf(node.start % 7)
    left, right = children(node)
    return np.add(direct(left), direct(right))


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
        assert vector.tobytes() == direct(node).tobytes()


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
    with pytest.raises(LeafMissing, match="held: nothing"):
        sums.take([root_of(microbatches)])


# --- samples ------------------------------------------------------------------------------------

SMALL = st.integers(1, 30)


@given(SMALL, SMALL, st.integers(1, 8), st.integers(0, WORD - 1), st.integers(0, 3))
def test_ledger_of_an_epoch_adds_up_through_the_lanes(
    samples: int, global_batch: int, microbatches: int, seed: int, epoch: int
) -> None:
    """As a job does it: each microbatch writes lanes, a step sums them and records."""
    order = SampleOrder(seed, samples, global_batch, microbatches)
    table = FingerprintTable(samples)
    ledger = Ledger()
    for step in range(order.steps_per_epoch):
        index = epoch * order.steps_per_epoch + step
        parts = [order.microbatch(index, m) for m in range(microbatches)]
        lanes = np.empty((microbatches, LANES), np.float32)
        for row, part in zip(lanes, parts, strict=True):
            write_lanes(row, len(part), table.fingerprint(part))
        ledger = ledger.record(*from_lanes(np.sum(lanes, axis=0, dtype=np.float32)))

    assert ledger.covers(samples)
    assert not ledger.covers(samples + 1)
    assert not ledger.record(1, fingerprint([0])).covers(samples)


@given(SMALL, SMALL, st.integers(1, 8))
def test_validation_holds_every_sample_once_in_its_own_order(
    samples: int, global_batch: int, microbatches: int
) -> None:
    order = SequentialOrder(samples, global_batch, microbatches)

    parts = [
        order.microbatch(index, m)
        for index in range(order.steps_per_epoch)
        for m in range(microbatches)
    ]

    assert np.concatenate(parts).tolist() == list(range(samples))


@given(SMALL, SMALL, st.integers(0, WORD - 1), st.integers(0, 60))
def test_batch_is_that_of_its_microbatches_however_many_there_are(
    samples: int, global_batch: int, seed: int, index: int
) -> None:
    whole = SampleOrder(seed, samples, global_batch, 1).batch(index).tolist()
    for microbatches in (1, 2, 5):
        order = SampleOrder(seed, samples, global_batch, microbatches)
        parts = [order.microbatch(index, m).tolist() for m in range(microbatches)]
        assert [sample for part in parts for sample in part] == whole


@given(st.integers(0, WORD - 1), st.integers(0, 99), st.integers(0, 3))
def test_seed_of_a_microbatch_is_another_one_in_every_update(seed: int, index: int, m: int) -> None:
    order = SampleOrder(seed, 10, 4, 4)

    seeds = {order.microbatch_seed(index + more, m) for more in range(20)}

    assert len(seeds) == 20
    assert all(0 <= found < 2**63 for found in seeds)


@given(st.integers(LANES, 40), st.integers(0, 1000), st.integers(0, WORD - 1))
def test_lanes_are_written_at_the_end_of_a_vector_and_nowhere_else(
    size: int, samples: int, value: int
) -> None:
    vector = np.full(size, 7, np.float32)

    write_lanes(vector, samples, value)

    assert vector[:-LANES].tolist() == [7] * (size - LANES)
    assert from_lanes(vector[-LANES:]) == (samples, value)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_table_of_hashes_says_what_hashing_says(ids: list[int]) -> None:
    array = np.array(ids, np.int64)

    assert FingerprintTable(1001).fingerprint(array) == fingerprint(array)


@given(st.integers(0, WORD - 1), st.integers(0, WORD - 1))
def test_different_integers_have_different_hashes(left: int, right: int) -> None:
    assert (splitmix64(left) == splitmix64(right)) is (left == right)


@given(st.lists(st.integers(0, WORD - 1), min_size=1, max_size=5), st.integers(0, WORD - 1))
def test_chain_of_more_parts_is_another_one(parts: list[int], more: int) -> None:
    assert chain(*parts, more) == splitmix64(chain(*parts) ^ more)
    assert 0 <= chain(*parts) < WORD
