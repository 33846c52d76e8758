"""Leaves of batches that come from a pipeline: their samples are numbered by their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import FEATURES, TinyReplica, Watching

from holdfast.recovery.ledger import Cursor, Ledger, fingerprint_of_run
from holdfast.recovery.order import BatchOrder
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.runtime.data.feed import Feed, FeedTerms
from holdfast.runtime.exchange.communicator import LocalCommunicator
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.training.transaction import (
    BatchContributor,
    BatchTerms,
    BatchValidationContributor,
    Transaction,
)

SIZES = (9, 4, 10)
SAMPLES, PARTS = sum(SIZES), 3
ALONE = LocalCommunicator()


class Drawn:
    """Passes of batches of several sizes, drawn from the number of their pass."""

    name, advice, is_endless, repeats = "the test's pipeline", "leave it alone", False, False
    batches: int | None = len(SIZES)

    def __init__(self) -> None:
        self.opened: list[int] = []

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        self.opened.append(number)
        return 0, self.passing(number)

    def leave(self, number: int, start: int) -> None: ...

    def array(self, leaf: Any) -> Any:
        return np.asarray(leaf)

    def passing(self, number: int) -> Iterator[Any]:
        dice = np.random.default_rng(number)
        for size in SIZES:
            x = dice.normal(size=(size, FEATURES)).astype(np.float32)
            yield x, x.sum(axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def page() -> Iterator[HeartbeatPage]:
    page = HeartbeatPage.create()
    yield page
    page.close()


@pytest.fixture
def replica(page: HeartbeatPage) -> Watching:
    return Watching(page)


def terms(parts: int, begin: int = 0) -> BatchTerms:
    plan = WorkPlan(len(SIZES), 2, has_validation=False, save_every=None, begin=begin)
    return BatchTerms(BatchOrder(7, len(SIZES), parts), plan)


def training(
    page: HeartbeatPage, replica: Watching, parts: int = PARTS, begin: int = 0
) -> BatchContributor:
    return BatchContributor(replica, Feed(Drawn(), FeedTerms(3)), terms(parts, begin), page)


def validation(
    page: HeartbeatPage, replica: Watching, parts: int = PARTS, source: Drawn | None = None
) -> BatchValidationContributor:
    feed = Feed(source or Drawn(), FeedTerms(len(SIZES), is_validation=True))
    return BatchValidationContributor(replica, feed, terms(parts), page)


def leaf(contributor: BatchContributor, cursor: Cursor, m: int) -> tuple[bytes, int, int]:
    contributor.gather(cursor, (m,), ALONE)
    out = np.ones(contributor.size, np.float32)
    samples, proof = contributor.fill(cursor.step, m, out)
    return out.tobytes(), samples, proof


def cursors(begin: int = 0) -> list[Cursor]:
    """Return the cursors before each update of two epochs."""
    found = [Cursor.start(1, begin)]
    for size in SIZES * 2:
        cursor = found[-1]
        cursor = cursor.at_epoch_start() if cursor.ledger.samples == SAMPLES else cursor
        found.append(cursor.after_step(size, 0, np.zeros(1)))
    return found


def test_leaf_is_what_the_replica_makes_of_its_part_of_the_batch(
    page: HeartbeatPage, replica: Watching
) -> None:
    _, (x, y), _ = Drawn().passing(0)
    expected = np.empty(FEATURES + 1, np.float32)
    seed = BatchOrder(7, len(SIZES), PARTS).microbatch_seed(1, 2)
    TinyReplica().contribute(Microbatch(x[3:4], y[3:4], seed), expected)

    found = leaf(training(page, replica), cursors()[1], 2)

    assert found == (expected.tobytes(), 1, fingerprint_of_run(12, 13))


def test_places_count_on_within_an_epoch_and_begin_anew_with_the_next(
    page: HeartbeatPage, replica: Watching
) -> None:
    contributor = training(page, replica)

    for cursor in cursors()[:4]:
        leaf(contributor, cursor, 0)

    assert [work.ids for work in replica.noted] == [
        (0, 1, 2), (9, 10), (13, 14, 15, 16), (0, 1, 2),
    ]  # fmt: skip
    assert [work.step for work in replica.noted] == [1, 2, 3, 4]
    assert page.work is None


def test_later_training_reads_its_first_batch_with_its_own_seeds(
    page: HeartbeatPage, replica: Watching
) -> None:
    alone = leaf(training(page, replica), cursors()[1], 0)

    later = leaf(training(page, replica, begin=10), cursors(10)[1], 0)

    assert later == alone
    assert [work.step for work in replica.noted] == [2, 12]


def test_part_without_samples_is_zero_and_nothing_is_computed(
    page: HeartbeatPage, replica: Watching
) -> None:
    found = leaf(training(page, replica, parts=5), cursors()[1], 4)

    assert found == (bytes(4 * (FEATURES + 1)), 0, 0)
    assert replica.noted == []


@given(parts=st.integers(1, 12))
def test_leaves_prove_each_place_of_an_epoch_once(page: HeartbeatPage, parts: int) -> None:
    contributor = training(page, Watching(page), parts)

    ledger = Ledger()
    for cursor in cursors()[3:6]:  # the second epoch
        for m in range(parts):
            ledger = ledger.record(*leaf(contributor, cursor, m)[1:])

    assert ledger.covers(SAMPLES)


@given(parts=st.integers(1, 12))
def test_leaves_of_a_validation_prove_each_place_once(page: HeartbeatPage, parts: int) -> None:
    contributor = validation(page, Watching(page), parts)
    contributor.gather(Cursor.start(1), range(parts), ALONE)

    ledger = Ledger()
    for m in range(parts):
        ledger = ledger.record(*contributor.fill(0, m, np.empty(1, np.float32)))

    assert ledger.covers(SAMPLES)


def test_leaf_of_a_validation_adds_up_its_part_of_every_batch(
    page: HeartbeatPage, replica: Watching
) -> None:
    contributor = validation(page, replica)
    expected = np.zeros(1, np.float32)
    for (x, y), rows in zip(Drawn().passing(0), [(3, 6), (2, 3), (4, 7)], strict=True):
        one = np.empty(1, np.float32)
        TinyReplica().evaluate(Microbatch(x[slice(*rows)], y[slice(*rows)], 0), one)
        expected += one

    contributor.gather(cursors()[3], (1,), ALONE)
    out = np.empty(1, np.float32)
    samples, _ = contributor.fill(3, 1, out)

    assert (out.tobytes(), samples) == (expected.tobytes(), 7)
    assert [work.ids for work in replica.noted] == [(3, 4, 5), (11,), (17, 18, 19)]
    assert {(work.step, work.microbatch, work.is_validation) for work in replica.noted} == {
        (3, 1, True)
    }


def test_each_validation_begins_a_pass_of_its_own(page: HeartbeatPage, replica: Watching) -> None:
    source = Drawn()
    contributor = validation(page, replica, source=source)
    cursor = Cursor.start(1)

    contributor.gather(cursor, (0,), ALONE)
    contributor.gather(cursor.after_evaluation(), (0,), ALONE)

    assert source.opened == [0, 1]


def test_worker_counts_as_waiting_again_when_its_part_of_a_validation_is_computed(
    page: HeartbeatPage, replica: Watching
) -> None:
    page.begin_turn(waits_for_peers=True)

    validation(page, replica).gather(Cursor.start(1), (0,), ALONE)

    assert page.turn[1]


def test_samples_are_gathered_again_for_every_attempt(
    page: HeartbeatPage, replica: Watching
) -> None:
    transaction = Transaction(Work.TRAIN, training(page, replica), PARTS)
    cursor = Cursor.start(1)
    lacked = [transaction.lacks_samples]

    transaction.gather(cursor, (0,), ALONE)
    lacked.append(transaction.lacks_samples)
    transaction.compute(0, (0,))
    lacked.append(transaction.lacks_samples)

    assert lacked == [True, False, True]


def test_redone_validation_evaluates_only_what_this_worker_lacks(
    page: HeartbeatPage, replica: Watching
) -> None:
    transaction = Transaction(Work.EVALUATE, validation(page, replica), PARTS)
    cursor = Cursor.start(1)

    for owned in [(0,), (0, 2)]:
        transaction.gather(cursor, owned, ALONE)
        transaction.compute(0, owned)

    assert [work.microbatch for work in replica.noted] == [0] * 3 + [2] * 3
