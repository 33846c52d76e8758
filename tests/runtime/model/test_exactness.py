"""The bytes are the same for every assignment of microbatches to workers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras_harness import (
    BATCH,
    IMAGES,
    LABELS,
    MICROBATCHES,
    bytes_of,
    contribution,
    convolutional,
    dense,
    microbatch,
    train,
)
from keras_oracle import fresh_model

from holdfast.runtime.exchange.vector import aligned_vector
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.replica import Microbatch, Replica

pytestmark = pytest.mark.tensorflow


def test_a_keras_replica_is_a_replica(replicas: list[Any]) -> None:
    assert isinstance(replicas[0], Replica)


def test_new_processes_begin_with_the_same_bytes(workers: list[Any]) -> None:
    states = [bytes_of(replica.state()) for replica in workers]

    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    "owners", [(0, 0, 0, 1, 1), (1, 1, 0, 0, 0), (0, 0, 1, 1, 2), (2, 0, 1, 0, 2)], ids=str
)
def test_bytes_do_not_depend_on_who_computes_what(
    replicas: list[Any], initial: dict[str, np.ndarray], owners: Sequence[int], *, backwards: bool
) -> None:
    """Dropout, moving statistics, AdamW, schedule, clipping and metrics among them."""
    undisturbed = train(replicas[:1], (0,) * MICROBATCHES, range(4))
    expected = bytes_of(replicas[0].state())
    replicas[0].load(initial)

    totals = train(replicas[: max(owners) + 1], owners, range(4), backwards=backwards)

    assert totals == undisturbed
    for replica in replicas[: max(owners) + 1]:
        assert bytes_of(replica.state()) == expected
    assert expected != bytes_of(initial)


def test_another_seed_draws_another_dropout(replicas: list[Any]) -> None:
    x, y = IMAGES[:7], LABELS[:7]

    one = contribution(replicas[0], Microbatch(x, y, 1))
    again = contribution(replicas[0], Microbatch(x, y, 1))
    other = contribution(replicas[0], Microbatch(x, y, 2))

    assert one.tobytes() == again.tobytes()
    assert one.tobytes() != other.tobytes()


def test_a_contribution_overwrites_everything(replicas: list[Any]) -> None:
    """Padding included: equal microbatches make equal vectors in any old buffer."""
    batch = microbatch(0, 0)

    from_nan = contribution(replicas[0], batch, fill=np.nan)
    from_one = contribution(replicas[0], batch, fill=1.0)

    assert np.isfinite(from_nan).all()
    assert from_nan.tobytes() == from_one.tobytes()


def test_contributing_and_evaluating_change_nothing(replicas: list[Any]) -> None:
    before = bytes_of(replicas[0].state())

    contribution(replicas[0], microbatch(0, 0))
    replicas[0].evaluate(microbatch(0, 1), np.empty(replicas[0].shape.metrics, np.float32))
    replicas[0].prepare(microbatch(0, 4))
    replicas[0].results(np.ones(replicas[0].shape.metrics), 6)

    assert bytes_of(replicas[0].state()) == before


def test_a_total_need_not_be_aligned_or_writable(replicas: list[Any]) -> None:
    total = contribution(replicas[0], microbatch(0, 0))
    odd = aligned_vector(total.size + 1)[1:]
    odd[:] = total
    odd.flags.writeable = False

    replicas[0].apply(total, 7)
    replicas[1].apply(odd, 7)

    assert bytes_of(replicas[0].state()) == bytes_of(replicas[1].state())


def test_the_total_is_left_alone(replicas: list[Any]) -> None:
    total = contribution(replicas[0], microbatch(0, 0))
    before = total.tobytes()

    replicas[0].apply(total, 7)

    assert total.tobytes() == before


def test_metrics_are_those_of_keras(replicas: list[Any], tf: SimpleNamespace) -> None:
    """Sums over microbatches give what Keras finds over all samples at once."""
    train(replicas[:1], (0,) * MICROBATCHES, range(6))
    sums = np.zeros(replicas[0].shape.metrics)
    one = np.empty(replicas[0].shape.metrics, np.float32)
    for m in range(MICROBATCHES):
        replicas[0].evaluate(microbatch(0, m), one)
        sums += one

    results = replicas[0].results(sums, BATCH)

    expected = replicas[0].model.evaluate(
        IMAGES[:BATCH], LABELS[:BATCH], verbose=0, return_dict=True
    )
    assert results == pytest.approx(expected, rel=1e-5)
    assert set(results) == {"loss", "accuracy", "auc"}


def scaled(tf: SimpleNamespace) -> Any:
    """A loss whose gradients overflow in the first steps, which are skipped."""
    optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam(), 2.0**127)
    return dense(tf, optimizer=optimizer)


ALONE = {"convolutional": convolutional, "dense": dense, "scaled": scaled}


@pytest.fixture
def keeps_small_gradients(tf: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of tests are small."""
    monkeypatch.setattr(tf.module, "WORTH_KEEPING", 1)


def whole_batch_replica(tf: SimpleNamespace, case: str, *, is_alone: bool) -> Any:
    return tf.module.KerasReplica(
        fresh_model(tf, ALONE[case]),
        IMAGES[:7],
        LABELS[:7],
        mixing=BatchMixing.ALONE if is_alone else BatchMixing.HARMLESS,
    )


@pytest.mark.usefixtures("keeps_small_gradients")
@pytest.mark.parametrize("case", ALONE)
def test_worker_that_adds_nothing_up_ends_with_the_same_bytes(
    tf: SimpleNamespace, case: str
) -> None:
    summing = whole_batch_replica(tf, case, is_alone=False)
    alone = whole_batch_replica(tf, case, is_alone=True)

    for step in range(4):
        batch = microbatch(step, 0)
        totals = [contribution(replica, batch) for replica in (summing, alone)]
        rests = [t[r.shape.gradient :] for t, r in zip(totals, (summing, alone), strict=True)]
        assert rests[0].tobytes() == rests[1].tobytes()
        for replica, total in zip((summing, alone), totals, strict=True):
            assert np.isfinite(total).all() or replica.takes_overflow(total)
            replica.apply(total, batch.samples)

    assert bytes_of(alone.state()) == bytes_of(summing.state())
    assert alone.shape.gradient < summing.shape.gradient


@pytest.mark.usefixtures("keeps_small_gradients")
def test_worker_that_adds_nothing_up_tells_which_numbers_are_not_finite(
    tf: SimpleNamespace,
) -> None:
    overflowing = whole_batch_replica(tf, "scaled", is_alone=True)
    broken = whole_batch_replica(tf, "convolutional", is_alone=True)

    scaled_total = contribution(overflowing, microbatch(0, 0))
    images = np.full_like(IMAGES[:7], np.nan)
    broken_total = contribution(broken, Microbatch(images, LABELS[:7], 0))

    assert np.isnan(scaled_total).tolist()[:2] == [True, False]
    assert overflowing.takes_overflow(scaled_total)
    assert np.isnan(broken_total).tolist()[:2] == [True, True]  # gradients, moving statistics
    assert not broken.takes_overflow(broken_total)


@pytest.mark.usefixtures("keeps_small_gradients")
def test_total_of_a_worker_that_adds_nothing_up_is_applied_once(tf: SimpleNamespace) -> None:
    replica = whole_batch_replica(tf, "dense", is_alone=True)
    total = contribution(replica, microbatch(0, 0))
    replica.apply(total, 7)

    with pytest.raises(AssertionError, match="a contribution comes before its total"):
        replica.apply(total, 7)


def test_few_gradients_are_copied(tf: SimpleNamespace) -> None:
    alone = whole_batch_replica(tf, "dense", is_alone=True)

    assert alone.shape == whole_batch_replica(tf, "dense", is_alone=False).shape
