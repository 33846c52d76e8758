"""The leaves of a transaction: what each of them holds, and what is computed when it is redone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import FEATURES, Watching, data

from holdfast.recovery.ledger import LANES, Ledger, fingerprint
from holdfast.recovery.order import SampleOrder, SequentialOrder
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import WorkerId, World, assign
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.model.data import read_microbatch
from holdfast.runtime.system.heartbeat import HeartbeatPage, WorkInHand
from holdfast.runtime.training.transaction import (
    Contributor,
    TrainingContributor,
    Transaction,
    ValidationContributor,
)

SAMPLES, PARTS = 23, 4
ORDER = SampleOrder(7, SAMPLES, 9, PARTS)
FLOATS = FEATURES + 1
WEIGHT = 0.1


@pytest.fixture(scope="module")
def page() -> Iterator[HeartbeatPage]:
    page = HeartbeatPage.create()
    yield page
    page.close()


@pytest.fixture
def replica(page: HeartbeatPage) -> Watching:
    return Watching(page, WEIGHT)


def training(page: HeartbeatPage, replica: Watching, begin: int = 0) -> TrainingContributor:
    return TrainingContributor(replica, data(), ORDER, page, begin)


def leaf_of(contributor: Contributor, index: int, m: int) -> tuple[bytes, int, int]:
    """Return the bytes of a leaf that is written over something else, its samples and proof."""
    out = np.ones(contributor.size, np.float32)
    samples, proof = contributor.fill(index, m, out)
    return out.tobytes(), samples, proof


def test_leaf_is_what_the_replica_makes_of_its_own_samples(
    page: HeartbeatPage, replica: Watching
) -> None:
    ids = ORDER.microbatch(4, 1)
    expected = np.empty(FLOATS, np.float32)
    replica.contribute(read_microbatch(data(), ids, ORDER.microbatch_seed(4, 1)), expected)

    leaf = leaf_of(training(page, replica), 4, 1)

    assert leaf == (expected.tobytes(), len(ids), fingerprint(ids))


def test_samples_in_hand_are_noted_for_the_step_that_they_make(
    page: HeartbeatPage, replica: Watching
) -> None:
    leaf_of(training(page, replica), 4, 1)

    ids = tuple(ORDER.microbatch(4, 1).tolist())
    assert replica.noted == [WorkInHand(5, 1, len(ids), ids, is_validation=False)]
    assert page.work is None


def test_part_knows_the_size_of_its_batch_which_is_shorter_at_the_end_of_an_epoch(
    page: HeartbeatPage, replica: Watching
) -> None:
    for index in range(3):
        leaf_of(training(page, replica), index, 0)

    assert [batch.batch_samples for batch in replica.given] == [9, 9, 5]


def test_later_training_begins_its_own_order_and_counts_the_steps_of_the_run(
    page: HeartbeatPage, replica: Watching
) -> None:
    alone = leaf_of(training(page, replica), 2, 3)

    later = leaf_of(training(page, replica, begin=10), 12, 3)

    assert later == alone
    assert [work.step for work in replica.noted if work] == [3, 13]


def test_microbatch_without_samples_is_zero_and_nothing_is_computed(
    page: HeartbeatPage, replica: Watching
) -> None:
    order = SampleOrder(7, SAMPLES, 9, 7)  # the last batch has 5 samples
    contributor = TrainingContributor(replica, data(), order, page)

    leaf = leaf_of(contributor, 2, 6)

    assert leaf == (bytes(4 * FLOATS), 0, 0)
    assert replica.noted == []


@given(samples=st.integers(1, 30), batch=st.integers(1, 12), parts=st.integers(1, 9))
@pytest.mark.parametrize("kind", ["training", "validation"])
def test_leaves_prove_each_sample_once(
    page: HeartbeatPage, kind: str, samples: int, batch: int, parts: int
) -> None:
    replica, given_data = Watching(page, WEIGHT), data(samples)
    order = SampleOrder(7, samples, batch, parts)
    contributor: Contributor = TrainingContributor(replica, given_data, order, page)
    steps = order.steps_per_epoch
    if kind == "validation":
        in_order = SequentialOrder(samples, batch, parts)
        contributor, steps = ValidationContributor(replica, given_data, in_order, page), 1

    ledger = Ledger()
    for index in range(steps):
        for m in range(parts):
            _, count, proof = leaf_of(contributor, index, m)
            ledger = ledger.record(count, proof)

    assert ledger.covers(samples)


def test_leaf_of_a_validation_adds_up_its_part_of_every_batch(
    page: HeartbeatPage, replica: Watching
) -> None:
    contributor = ValidationContributor(replica, data(11), SequentialOrder(11, 4, 2), page)
    ids = np.array([2, 3, 6, 7, 10])  # of batches of 4, 4 and 3 samples
    expected = np.empty(1, np.float32)
    replica.evaluate(read_microbatch(data(11), ids, seed=0), expected)
    replica.given.clear()

    leaf, samples, proof = leaf_of(contributor, 5, 1)

    assert np.frombuffer(leaf, np.float32) == pytest.approx(expected)
    assert (samples, proof) == (5, fingerprint(ids))
    assert [(batch.samples, batch.batch_samples) for batch in replica.given] == [
        (2, 4), (2, 4), (1, 3),
    ]  # fmt: skip


def test_validation_is_noted_for_the_step_that_is_committed(
    page: HeartbeatPage, replica: Watching
) -> None:
    contributor = ValidationContributor(replica, data(11), SequentialOrder(11, 6, 2), page)

    leaf_of(contributor, 5, 1)

    assert replica.noted == [
        WorkInHand(5, 1, 3, (3, 4, 5), is_validation=True),
        WorkInHand(5, 1, 2, (9, 10), is_validation=True),
    ]
    assert page.work is None


def test_transaction_that_is_redone_computes_only_the_adopted_leaves(
    page: HeartbeatPage, replica: Watching
) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)

    transaction.compute(0, (0, 1))
    transaction.compute(0, (0, 1, 3))

    assert replica.parts == [0, 1, 3]
    assert not transaction.lacks_samples


@pytest.mark.parametrize("drop", [Transaction.forget, Transaction.give_back])
def test_leaves_that_were_dropped_are_computed_again(
    page: HeartbeatPage, replica: Watching, drop: Callable[[Transaction], None]
) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)
    transaction.compute(0, (0, 2))

    drop(transaction)
    transaction.compute(1, (0, 2))

    assert replica.parts == [0, 2, 0, 2]
    assert [work.step for work in replica.noted if work] == [1, 1, 2, 2]


def test_memory_of_leaves_that_are_given_back_is_the_systems_again(
    page: HeartbeatPage, replica: Watching
) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)
    transaction.compute(0, (0, 2))
    assert transaction.vectors.at(0).any()

    transaction.give_back()

    assert not transaction.vectors.at(0).any()


def test_total_tells_its_samples_and_nobody_can_change_it(
    page: HeartbeatPage, replica: Watching
) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)
    me = WorkerId(0)
    transaction.compute(2, range(PARTS))

    (root,) = transaction.roots(assign(PARTS, World(1, (me,), 1)), me)
    total = transaction.split(root)

    ids = ORDER.batch(2)
    assert (total.samples, total.fingerprint) == (len(ids), fingerprint(ids))
    assert total.contribution.shape == (FLOATS,)
    with pytest.raises(ValueError, match="read-only"):
        total.contribution[0] = 1


def test_spare_takes_part_in_a_sum_without_a_vector(page: HeartbeatPage, replica: Watching) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)
    world = World(1, (WorkerId(0), WorkerId(1)), capacity=1)

    assert transaction.roots(assign(PARTS, world), WorkerId(1)) == ()


def test_total_without_a_whole_number_of_samples_is_refused_in_words(
    page: HeartbeatPage, replica: Watching
) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)

    with pytest.raises(RecoveryImpossible, match="no whole number of samples, so it was damaged"):
        transaction.split(np.full(FLOATS + LANES, 0.5, np.float32))
