"""What an epoch has applied, and the position of a job."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import LedgerUnreadable
from holdfast.recovery.ledger import (
    LANES,
    MAX_MICROBATCHES,
    Cursor,
    FingerprintTable,
    Ledger,
    fingerprint,
    fingerprint_of_run,
    from_lanes,
    write_lanes,
)
from holdfast.recovery.order import WORD, SampleOrder, splitmix64

ids = st.lists(st.integers(0, 10**12), max_size=40)

_WORDS = st.integers(0, 2**64 - 1)
_SUMS = st.lists(st.floats(width=64), min_size=1, max_size=4)

SMALL = st.integers(1, 30)


def ledger_of(*samples: int) -> Ledger:
    return Ledger().record(len(samples), fingerprint(samples))


def _lanes(samples: int, fingerprint: int) -> npt.NDArray[np.float32]:
    lanes = np.empty(LANES, np.float32)
    write_lanes(lanes, samples, fingerprint)
    return lanes


@given(st.integers(0, 10**9), st.integers(0, 300))
def test_a_run_of_ids_has_the_fingerprint_of_its_ids(first: int, samples: int) -> None:
    run = range(first, first + samples)
    assert fingerprint_of_run(first, first + samples) == fingerprint(run)


def test_fingerprints_never_change() -> None:
    assert fingerprint(range(10)) == 7438657777315996608
    assert fingerprint([0]) == 16294208416658607535


@given(ids)
def test_fingerprint_is_the_sum_of_hashes(samples: list[int]) -> None:
    assert fingerprint(samples) == sum(map(splitmix64, samples)) % WORD


@given(st.integers(2, 60), st.data())
def test_any_exchanged_sample_is_noticed(samples: int, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, samples - 1))
    instead = data.draw(st.integers(0, 10**9).filter(lambda sample: sample != gone))
    applied = [instead if sample == gone else sample for sample in range(samples)]

    assert not ledger_of(*applied).covers(samples)


@given(st.integers(0, 2**24), st.integers(0, WORD - 1))
def test_lanes_bring_count_and_fingerprint_back(samples: int, value: int) -> None:
    vector = np.full(LANES + 2, 0.5, np.float32)

    write_lanes(vector, samples, value)

    assert from_lanes(vector[2:]) == (samples, value)
    assert vector[:2].tolist() == [0.5, 0.5]


def test_lanes_of_the_most_microbatches_add_up_exactly() -> None:
    """Every lane at its largest, summed in float32, one after another."""
    total = np.zeros(LANES, dtype=np.float32)
    lanes = _lanes(1, WORD - 1)

    for _ in range(MAX_MICROBATCHES):
        total += lanes

    assert from_lanes(total) == (MAX_MICROBATCHES, MAX_MICROBATCHES * (WORD - 1) % WORD)


@pytest.mark.parametrize("damage", [0.5, -1.0, np.nan, np.inf, float(2**25)])
def test_damaged_lanes_are_refused(damage: float) -> None:
    lanes = _lanes(3, 12345)
    lanes[4] = damage

    with pytest.raises(LedgerUnreadable, match="the reduced vector is damaged"):
        from_lanes(lanes)


@pytest.mark.parametrize(("samples", "value"), [(-1, 0), (2**24 + 1, 0), (1, WORD), (1, -1)])
def test_what_does_not_fit_the_lanes_is_refused(samples: int, value: int) -> None:
    with pytest.raises(ValueError, match="do not fit the lanes"):
        _lanes(samples, value)


def same(left: Cursor, right: Cursor) -> bool:
    return (left.step, left.evaluations, left.ledger) == (
        right.step,
        right.evaluations,
        right.ledger,
    ) and left.sums.tobytes() == right.sums.tobytes()


@given(st.integers(0, 2**62), st.integers(0, 2**31), st.integers(0, 2**62), _WORDS, _SUMS)
def test_tensors_bring_back_every_bit(
    step: int, evaluations: int, samples: int, proof: int, sums: list[float]
) -> None:
    cursor = Cursor(step, evaluations, Ledger(samples, proof), np.array(sums))

    assert same(Cursor.from_tensors(cursor.tensors()), cursor)


def test_every_commit_raises_the_version() -> None:
    cursor = Cursor.start(1)

    stepped = cursor.after_step(4, 99, np.ones(1))
    evaluated = stepped.after_evaluation()

    turned = evaluated.after_turn(1, np.ones(1))
    again = turned.after_turn(2, np.ones(1))
    done = again.after_step(4, 99, np.ones(1))

    cursors = [cursor, stepped, evaluated, turned, again, done]
    versions = [each.version for each in cursors]
    assert versions == sorted(set(versions))
    assert (done.step, done.turn, done.sums.tolist()) == (2, 0, [4.0])
    assert (stepped.step, evaluated.step) == (1, 1)
    assert evaluated.ledger == Ledger(4, 99)


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


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_table_of_hashes_says_what_hashing_says(ids: list[int]) -> None:
    array = np.array(ids, np.int64)

    assert FingerprintTable(1001).fingerprint(array) == fingerprint(array)
