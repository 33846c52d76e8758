"""A worker that trains alone, with one graph a step, ends as workers that add up and vote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_harness import (
    FIRST,
    IMAGES,
    LABELS,
    bytes_of,
    contribution,
    convolutional,
    dense,
    microbatch,
)
from keras_oracle import fresh_model

from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.choose import LoneReplica, replica_of_keras
from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

NAN = Microbatch(np.full_like(IMAGES[:7], np.nan), LABELS[:7], 0)


def scaled(tf: SimpleNamespace) -> Any:
    """A loss whose gradients overflow in the first steps, which are skipped."""
    optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam(), 2.0**127)
    return dense(tf, optimizer=optimizer)


def in_halves(tf: SimpleNamespace) -> Any:
    layers = tf.keras.layers
    hidden = layers.Dense(8, activation="relu", dtype="mixed_bfloat16")
    model = tf.keras.Sequential([layers.Flatten(), hidden, layers.Dense(1, dtype="float32")])
    model.compile(optimizer="rmsprop", loss="mse")
    return model


def normalised(tf: SimpleNamespace) -> Any:
    """A small model with statistics and draws."""
    layers = tf.keras.layers
    hidden = [layers.Flatten(), layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.3)]
    model = tf.keras.Sequential([*hidden, layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


MODELS = {  # test_compiled_updates.py has more optimizers
    "convolutional": convolutional,
    "dense": dense,
    "scaled": scaled,
    "in halves": in_halves,
    "normalised": normalised,
}


def replica_for(tf: SimpleNamespace, case: str, mixing: BatchMixing) -> Any:
    return replica_of_keras(fresh_model(tf, MODELS[case]), FIRST, mixing)


def lone(tf: SimpleNamespace, case: str) -> Any:
    replica = replica_for(tf, case, BatchMixing.ALONE)
    assert isinstance(replica, LoneReplica)
    return replica


@pytest.mark.parametrize("case", shortened(MODELS, here=("scaled", "normalised")))
def test_lone_worker_ends_with_the_bytes_of_workers_that_add_up(
    tf: SimpleNamespace, case: str
) -> None:
    """Batches have 7 and 6 samples, so a division by them is not exact."""
    summing = replica_for(tf, case, BatchMixing.HARMLESS)
    alone = lone(tf, case)

    for step in range(5):
        batch = microbatch(step, 0 if step % 2 else 4)
        totals = [contribution(replica, batch) for replica in (summing, alone)]
        rests = [t[r.shape.gradient :] for t, r in zip(totals, (summing, alone), strict=True)]
        assert rests[0].tobytes() == rests[1].tobytes()
        for replica, total in zip((summing, alone), totals, strict=True):
            assert np.isfinite(total).all() or replica.takes_overflow(total)
            replica.apply(total, batch.samples)

    assert bytes_of(alone.state()) == bytes_of(summing.state())
    assert alone.shape.gradient < summing.shape.gradient


@pytest.mark.parametrize("mixing", [BatchMixing.HARMLESS, BatchMixing.ALONE])
def test_settings_of_the_optimizer_are_those_of_the_first_trace_for_batches_of_all_sizes(
    tf: SimpleNamespace, mixing: BatchMixing
) -> None:
    """Else the last, smaller batch of an epoch would be trained by another rule."""
    replica = replica_for(tf, "dense", mixing)
    before = replica.model.layers[-1].kernel.numpy()
    replica.model.optimizer.clipnorm = 1e-6

    replica.apply(contribution(replica, Microbatch(IMAGES[:5], LABELS[:5], 0)), 5)

    assert np.abs(replica.model.layers[-1].kernel.numpy() - before).max() > 1e-3


def test_marks_tell_which_numbers_are_not_finite(tf: SimpleNamespace) -> None:
    overflowing, broken = lone(tf, "scaled"), lone(tf, "normalised")

    scaled_total = contribution(overflowing, microbatch(0, 0))
    broken_total = contribution(broken, NAN)

    assert np.isnan(scaled_total).tolist()[:2] == [True, False]
    assert overflowing.takes_overflow(scaled_total)
    assert np.isnan(broken_total).tolist()[:2] == [True, True]  # gradients, moving statistics
    assert not broken.takes_overflow(broken_total)


def test_finite_numbers_whose_sum_overflows_are_finite(tf: SimpleNamespace) -> None:
    """All 36 weights of the one layer get the gradient 1e38, and float32 ends at 3.4e38."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Flatten(), layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer="sgd", loss=lambda y, prediction: y * prediction)
    ones = np.ones_like(IMAGES[:1])
    batch = Microbatch(ones, np.full((1, 1), 1e38, np.float32), 0)
    replica = replica_of_keras(model, batch, BatchMixing.ALONE)

    total = contribution(replica, batch)

    assert np.isfinite(total).all()
    assert np.asarray(model.layers[-1].kernel).max() == pytest.approx(-1e36)


def test_numbers_that_are_not_finite_have_no_effect_before_the_job_takes_them(
    tf: SimpleNamespace,
) -> None:
    """`TerminateOnNaN` takes them: then the model holds what Keras leaves in it."""
    alone = lone(tf, "normalised")
    summing = replica_for(tf, "normalised", BatchMixing.HARMLESS)
    before = bytes_of(alone.state())

    total = contribution(alone, NAN)
    assert bytes_of(alone.state()) == before

    alone.apply(total, 7)
    summing.apply(contribution(summing, NAN), 7)
    assert bytes_of(alone.state()) == bytes_of(summing.state()) != before


def test_effect_comes_once(tf: SimpleNamespace) -> None:
    replica = lone(tf, "dense")
    total = contribution(replica, microbatch(0, 0))
    after = bytes_of(replica.state())

    replica.apply(total, 7)

    assert bytes_of(replica.state()) == after
    with pytest.raises(AssertionError, match="a contribution comes before its total"):
        replica.apply(total, 7)


def test_preparing_and_evaluating_change_nothing(tf: SimpleNamespace) -> None:
    replica = lone(tf, "convolutional")
    before = bytes_of(replica.state())

    replica.prepare(microbatch(0, 0))
    replica.prepare(microbatch(0, 4))
    replica.evaluate(microbatch(0, 1), np.empty(replica.shape.metrics, np.float32))

    assert bytes_of(replica.state()) == before


def test_state_that_was_read_keeps_its_numbers(tf: SimpleNamespace) -> None:
    """A checkpoint is written from it while the next steps run."""
    replica = lone(tf, "normalised")
    state = replica.state()
    before = bytes_of(state)

    for step in range(3):
        replica.apply(contribution(replica, microbatch(step, 0)), 7)

    assert bytes_of(state) == before != bytes_of(replica.state())
