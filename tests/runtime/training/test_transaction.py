"""The leaves of a transaction: what each of them holds, and what is computed when it is redone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_communicator import LocalCommunicator
from simulation import FEATURES, Drawn, TinyReplica, Watching, data

from holdfast.recovery.event import WorkInHand
from holdfast.recovery.ledger import LANES, Cursor, Ledger, fingerprint, fingerprint_of_run
from holdfast.recovery.order import BatchOrder, SampleOrder
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.recovery.world import WorkerId, World, assign
from holdfast.runtime.data.batch import OwnRows
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import read_microbatch
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.transaction import (
    BatchLeaves,
    BatchValidationLeaves,
    LeafMaker,
    TrainingLeaves,
    Transaction,
    ValidationLeaves,
)

SAMPLES, PARTS = 23, 4
ORDER = SampleOrder(7, SAMPLES, 9, PARTS)
FLOATS = FEATURES + 1
WEIGHT = 0.1
SIZES = (9, 4, 10)
ALL, THREE = sum(SIZES), 3
ALONE = LocalCommunicator()


@pytest.fixture(scope="module")
def page() -> Iterator[WorkerStatus]:
    page = WorkerStatus.create()
    yield page
    page.close()


@pytest.fixture
def replica(page: WorkerStatus) -> Watching:
    return Watching(page, WEIGHT)


@pytest.fixture
def leaves(page: WorkerStatus, replica: Watching) -> TrainingLeaves:
    return TrainingLeaves(replica, data(), ORDER, page)


@pytest.fixture
def transaction(leaves: TrainingLeaves) -> Transaction:
    return Transaction(Work.TRAIN, leaves, PARTS)


def leaf_of(maker: LeafMaker, index: int, m: int) -> tuple[bytes, int, int]:
    """Return the bytes of a leaf that is written over something else, its samples and proof."""
    out = np.ones(maker.size, np.float32)
    samples, proof = maker.fill(index, m, out)
    return out.tobytes(), samples, proof


def test_leaf_is_what_the_replica_makes_of_its_own_samples(
    page: WorkerStatus, leaves: TrainingLeaves, replica: Watching
) -> None:
    ids = ORDER.microbatch(4, 1)
    expected = np.empty(FLOATS, np.float32)
    replica.contribute(read_microbatch(data(), ids, ORDER.microbatch_seed(4, 1)), expected)

    assert leaf_of(leaves, 4, 1) == (expected.tobytes(), len(ids), fingerprint(ids))

    noted = WorkInHand(5, 1, len(ids), tuple(ids.tolist()), is_validation=False)
    assert (replica.noted[1:], page.work) == ([noted], None)


def test_part_knows_the_size_of_its_batch_which_is_shorter_at_the_end_of_an_epoch(
    leaves: TrainingLeaves, replica: Watching
) -> None:
    for index in range(3):
        leaf_of(leaves, index, 0)

    assert [batch.batch_samples for batch in replica.given] == [9, 9, 5]


def test_later_training_begins_its_own_order_and_counts_the_steps_of_the_run(
    page: WorkerStatus, leaves: TrainingLeaves, replica: Watching
) -> None:
    alone = leaf_of(leaves, 2, 3)

    later = leaf_of(TrainingLeaves(replica, data(), ORDER, page, begin=10), 12, 3)

    assert later == alone
    assert [work.step for work in replica.noted if work] == [3, 13]


@given(samples=st.integers(1, 30), batch=st.integers(1, 12), parts=st.integers(1, 9))
@pytest.mark.parametrize("kind", ["training", "validation"])
def test_leaves_prove_each_sample_once(
    page: WorkerStatus, kind: str, samples: int, batch: int, parts: int
) -> None:
    replica, given_data = Watching(page, WEIGHT), data(samples)
    order = SampleOrder(7, samples, batch, parts)
    maker: LeafMaker = TrainingLeaves(replica, given_data, order, page)
    steps = order.steps_per_epoch
    if kind == "validation":
        in_order = SampleOrder(0, samples, batch, parts, is_shuffled=False)
        maker, steps = ValidationLeaves(replica, given_data, in_order, page), 1

    ledger = Ledger()
    for index in range(steps):
        for m in range(parts):
            _, count, proof = leaf_of(maker, index, m)
            ledger = ledger.record(count, proof)

    assert ledger.covers(samples)


def test_leaf_of_a_validation_adds_up_its_part_of_every_batch(
    page: WorkerStatus, replica: Watching
) -> None:
    maker = ValidationLeaves(replica, data(11), SampleOrder(0, 11, 4, 2, is_shuffled=False), page)
    ids = np.array([2, 3, 6, 7, 10])  # of batches of 4, 4 and 3 samples
    expected = np.empty(1, np.float32)
    replica.evaluate(read_microbatch(data(11), ids, seed=0), expected)
    replica.given.clear()

    leaf, samples, proof = leaf_of(maker, 5, 1)

    assert np.frombuffer(leaf, np.float32) == pytest.approx(expected)
    assert (samples, proof) == (5, fingerprint(ids))
    assert [(batch.samples, batch.batch_samples) for batch in replica.given] == [
        (2, 4), (2, 4), (1, 3),
    ]  # fmt: skip
    assert [work and (work.step, work.microbatch, work.ids) for work in replica.noted[1:]] == [
        (5, 1, (2, 3)), (5, 1, (6, 7)), (5, 1, (10,)),
    ]  # fmt: skip
    assert all(work and work.is_validation for work in replica.noted[1:])
    assert page.work is None


def test_transaction_that_is_redone_computes_only_the_adopted_leaves(
    transaction: Transaction, replica: Watching
) -> None:
    transaction.compute(0, (0, 1))
    transaction.compute(0, (0, 1, 3))

    assert replica.parts == [0, 1, 3]
    assert not transaction.lacks_samples


@pytest.mark.parametrize("drop", [Transaction.forget, Transaction.give_back])
def test_leaves_that_were_dropped_are_computed_again(
    transaction: Transaction, replica: Watching, drop: Callable[[Transaction], None]
) -> None:
    transaction.compute(0, (0, 2))

    drop(transaction)
    transaction.compute(1, (0, 2))

    assert replica.parts == [0, 2, 0, 2]
    assert [work.step for work in replica.noted if work] == [1, 1, 2, 2]


def test_memory_of_leaves_that_are_given_back_is_the_systems_again(
    transaction: Transaction,
) -> None:
    transaction.compute(0, (0, 2))
    assert transaction.vectors.at(0).any()

    transaction.give_back()

    assert not transaction.vectors.at(0).any()


def test_total_tells_its_samples_and_nobody_can_change_it(transaction: Transaction) -> None:
    me = WorkerId(0)
    transaction.compute(2, range(PARTS))

    (root,) = transaction.roots(assign(PARTS, World(1, (me,), 1)), me)
    total = transaction.split(root)

    ids = ORDER.batch(2)
    assert (total.samples, total.fingerprint) == (len(ids), fingerprint(ids))
    assert total.contribution.shape == (FLOATS,)
    with pytest.raises(ValueError, match="read-only"):
        total.contribution[0] = 1


def test_spare_takes_part_in_a_sum_without_a_vector(transaction: Transaction) -> None:
    world = World(1, (WorkerId(0), WorkerId(1)), capacity=1)

    assert transaction.roots(assign(PARTS, world), WorkerId(1)) == ()


def test_total_without_a_whole_number_of_samples_is_refused_in_words(
    transaction: Transaction,
) -> None:
    with pytest.raises(RecoveryImpossible, match="no whole number of samples, so it was damaged"):
        transaction.split(np.full(FLOATS + LANES, 0.5, np.float32))


@pytest.fixture
def watching(page: WorkerStatus) -> Watching:
    return Watching(page)


class DrawnByRows(Drawn):
    """The same passes, of which each worker makes its own rows."""

    fingerprint = "of these passes"

    def __init__(self) -> None:
        super().__init__(SIZES)
        self.rows = self
        self.shares: list[tuple[int, list[tuple[int, int]]]] = []

    def open(self, number: int, start: int, ranges: Any = None) -> Any:
        self.shares.append((start, ranges(SIZES[0])))
        for x, y in list(self.passing(number))[start:]:
            found = {at: (x[slice(*at)], y[slice(*at)], None) for at in ranges(len(x))}
            yield OwnRows(len(x), found)


def batch_training(
    page: WorkerStatus, watching: Watching, parts: int = THREE, begin: int = 0, source: Any = None
) -> BatchLeaves:
    plan = WorkPlan(len(SIZES), 2, has_validation=False, save_every=None, begin=begin)
    order = BatchOrder(7, len(SIZES), parts)
    return BatchLeaves(watching, Feed(source or Drawn(SIZES), 3), order, plan, page)


def batch_validation(
    page: WorkerStatus, watching: Watching, parts: int = THREE, source: Drawn | None = None
) -> BatchValidationLeaves:
    feed = Feed(source or Drawn(SIZES), len(SIZES), is_validation=True)
    return BatchValidationLeaves(watching, feed, BatchOrder(7, len(SIZES), parts), page)


def batch_leaf(maker: BatchLeaves, cursor: Cursor, m: int) -> tuple[bytes, int, int]:
    maker.gather(cursor, (m,), ALONE)
    out = np.ones(maker.size, np.float32)
    samples, proof = maker.fill(cursor.step, m, out)
    return out.tobytes(), samples, proof


def cursors(begin: int = 0) -> list[Cursor]:
    """Return the cursors before each update of two epochs."""
    found = [Cursor.start(1, begin)]
    for size in SIZES * 2:
        cursor = found[-1]
        cursor = cursor.at_epoch_start() if cursor.ledger.samples == ALL else cursor
        found.append(cursor.after_step(size, 0, np.zeros(1)))
    return found


def test_leaf_is_what_the_replica_makes_of_its_part_of_the_batch(
    page: WorkerStatus, watching: Watching
) -> None:
    _, (x, y), _ = Drawn(SIZES).passing(0)
    expected = np.empty(FEATURES + 1, np.float32)
    seed = BatchOrder(7, len(SIZES), THREE).microbatch_seed(1, 2)
    TinyReplica().contribute(Microbatch(x[3:4], y[3:4], seed), expected)

    found = batch_leaf(batch_training(page, watching), cursors()[1], 2)

    assert found == (expected.tobytes(), 1, fingerprint_of_run(12, 13))


def test_places_count_on_within_an_epoch_and_begin_anew_with_the_next(
    page: WorkerStatus, watching: Watching
) -> None:
    maker = batch_training(page, watching)

    for cursor in cursors()[:4]:
        batch_leaf(maker, cursor, 0)

    assert [work.ids for work in watching.noted] == [
        (0, 1, 2), (9, 10), (13, 14, 15, 16), (0, 1, 2),
    ]  # fmt: skip
    assert [work.step for work in watching.noted] == [1, 2, 3, 4]
    assert page.work is None


@given(parts=st.integers(1, 12))
def test_leaves_prove_each_place_of_an_epoch_once(page: WorkerStatus, parts: int) -> None:
    maker = batch_training(page, Watching(page), parts)

    ledger = Ledger()
    for cursor in cursors()[3:6]:  # the second epoch
        for m in range(parts):
            ledger = ledger.record(*batch_leaf(maker, cursor, m)[1:])

    assert ledger.covers(ALL)


def test_leaf_of_a_validated_pipeline_adds_up_its_part_of_every_batch(
    page: WorkerStatus, watching: Watching
) -> None:
    maker = batch_validation(page, watching)
    expected = np.zeros(1, np.float32)
    for (x, y), rows in zip(Drawn(SIZES).passing(0), [(3, 6), (2, 3), (4, 7)], strict=True):
        one = np.empty(1, np.float32)
        TinyReplica().evaluate(Microbatch(x[slice(*rows)], y[slice(*rows)], 0), one)
        expected += one

    maker.gather(cursors()[3], (1,), ALONE)
    out = np.empty(1, np.float32)
    samples, _ = maker.fill(3, 1, out)

    assert (out.tobytes(), samples) == (expected.tobytes(), 7)
    assert [work.ids for work in watching.noted] == [(3, 4, 5), (11,), (17, 18, 19)]
    assert {(work.step, work.microbatch, work.is_validation) for work in watching.noted} == {
        (3, 1, True)
    }


def test_worker_counts_as_waiting_again_when_its_part_of_a_validation_is_computed(
    page: WorkerStatus, watching: Watching
) -> None:
    page.begin_turn(waits_for_peers=True)

    batch_validation(page, watching).gather(Cursor.start(1), (0,), ALONE)

    assert page.turn[1]


def test_samples_are_gathered_again_for_every_attempt(
    page: WorkerStatus, watching: Watching
) -> None:
    transaction = Transaction(Work.TRAIN, batch_training(page, watching), THREE)
    cursor = Cursor.start(1)
    lacked = [transaction.lacks_samples]

    transaction.gather(cursor, (0,), ALONE)
    lacked.append(transaction.lacks_samples)
    transaction.compute(0, (0,))
    lacked.append(transaction.lacks_samples)

    assert lacked == [True, False, True]


def test_redone_validation_evaluates_only_what_this_worker_lacks(
    page: WorkerStatus, watching: Watching
) -> None:
    transaction = Transaction(Work.EVALUATE, batch_validation(page, watching), THREE)
    cursor = Cursor.start(1)

    for owned in [(0,), (0, 2)]:
        transaction.gather(cursor, owned, ALONE)
        transaction.compute(0, owned)

    assert [work.microbatch for work in watching.noted] == [0] * 3 + [2] * 3


def test_death_opens_the_pass_of_own_rows_once_and_the_next_step_goes_on(
    page: WorkerStatus, watching: Watching
) -> None:
    source = DrawnByRows()
    transaction = Transaction(Work.TRAIN, batch_training(page, watching, source=source), THREE)

    for step, owned in enumerate([(0,), (0, 2), (0, 2)]):
        cursor = cursors()[step // 2]  # the first step is done again with what was adopted
        transaction.gather(cursor, owned, ALONE)
        transaction.compute(cursor.step, owned)
        if step:
            transaction.forget()

    assert [work.microbatch for work in watching.noted] == [0, 2, 0, 2]
    assert source.shares == [(0, [(0, 3)]), (0, [(0, 3), (6, 9)])]
