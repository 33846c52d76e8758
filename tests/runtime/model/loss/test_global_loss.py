"""The loss and its gradient are those of the undivided batch, whatever the loss is made of."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_oracle import (
    assert_step_of_keras,
    evaluated_in_parts,
    fresh_model,
    parts_of,
)

from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(5)
N, T = 20, 6
LENGTHS = RANDOM.integers(1, T + 1, size=N)
IS_WORD = np.arange(T) < LENGTHS[:, None]
WORDS = np.where(IS_WORD, RANDOM.integers(1, 9, size=(N, T)), 0)
TAGS = RANDOM.integers(3, size=(N, T))
X = RANDOM.normal(size=(N, 4)).astype(np.float32)
Y = RANDOM.normal(size=(N, 1)).astype(np.float32)
WEIGHTS = RANDOM.uniform(0.1, 3.0, size=N).astype(np.float32)
STEP_WEIGHTS = RANDOM.uniform(0.1, 3.0, size=(N, T)).astype(np.float32)


def compiled(tf: SimpleNamespace, model: Any, loss: Any = "mse", **others: Any) -> Any:
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer=optimizer, loss=loss, **others)
    return model


def tagger(tf: SimpleNamespace, *, regularizer: str | None = None, **settings: Any) -> Any:
    """A model whose mask leaves steps out, so that its loss has a denominator of its own."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Embedding(9, 4, mask_zero=True),
            layers.Dense(3, activation="softmax", kernel_regularizer=regularizer),
        ]
    )
    return compiled(tf, model, **{"loss": "sparse_categorical_crossentropy", **settings})


def dense(tf: SimpleNamespace, loss: Any = "mse", **settings: Any) -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(3, **settings), layers.Dense(1)])
    return compiled(tf, model, loss)


def two_masks(tf: SimpleNamespace) -> Any:
    """Two outputs, the second of which is masked by other words."""
    layers = tf.keras.layers
    one, other = layers.Input((T,), name="one"), layers.Input((T,), name="other")
    embedding = layers.Embedding(9, 4, mask_zero=True)
    a = layers.Dense(3, activation="softmax", name="a")(embedding(one))
    b = layers.Dense(1, name="b", kernel_regularizer="l2")(embedding(other))
    model = tf.keras.Model({"one": one, "other": other}, {"a": a, "b": b})
    losses = {"a": "sparse_categorical_crossentropy", "b": "mse"}
    return compiled(tf, model, losses, loss_weights={"a": 0.5, "b": 2.0}, metrics={"b": ["mae"]})


def _adding(tf: SimpleNamespace, value: Callable[[Any, Any], Any], **settings: Any) -> Any:
    class Adding(tf.keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(value(tf.keras.ops, inputs))
            return inputs

    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(3, **settings), Adding(), layers.Dense(1)])
    return compiled(tf, model)


def endpoint(tf: SimpleNamespace, reduction: str) -> Any:
    """A layer that computes a loss object and adds its value; the model has no targets."""

    class Endpoint(tf.keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.loss = tf.keras.losses.MeanSquaredError(reduction=reduction)

        def call(self, outputs: Any, targets: Any, weights: Any) -> Any:
            self.add_loss(0.5 * self.loss(targets, outputs, weights))
            self.add_loss(tf.keras.ops.mean(outputs**2))
            return outputs

    layers = tf.keras.layers
    inputs = {
        "x": layers.Input((4,), name="x"),
        "y": layers.Input((1,), name="y"),
        "w": layers.Input((), name="w"),
    }
    outputs = Endpoint()(layers.Dense(1)(inputs["x"]), inputs["y"], inputs["w"])
    return compiled(tf, tf.keras.Model(inputs, outputs), None)


def own_loss(tf: SimpleNamespace) -> Any:
    """A model with a loss and a tracker of its own, which counts batches."""

    class Own(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1)
            self.tracker = tf.keras.metrics.Mean(name="own")

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def compute_loss(self, x: Any, y: Any, y_pred: Any, weights: Any, **_: Any) -> Any:
            loss = tf.keras.ops.mean(tf.keras.ops.abs(y - y_pred))
            self.tracker.update_state(loss)
            return loss

    return compiled(tf, Own())


WORDS_AND_TAGS = Microbatch(WORDS, TAGS, 0)
SQUARES = Microbatch(X, Y, 0)
WEIGHTED = Microbatch(X, Y, 0, WEIGHTS)
TWO = Microbatch({"one": WORDS, "other": WORDS[::-1]}, {"a": TAGS, "b": TAGS[..., None] / 2}, 0)
ENDPOINT = Microbatch({"x": X, "y": Y, "w": WEIGHTS}, None, 0)


def _loss(name: str, reduction: str | None) -> Callable[[SimpleNamespace], Any]:
    return lambda tf: dense(tf, getattr(tf.keras.losses, name)(reduction=reduction))


CASES: dict[str, tuple[Callable[[SimpleNamespace], Any], Microbatch]] = {
    "mask": (tagger, WORDS_AND_TAGS),
    "mask and regularizer": (lambda tf: tagger(tf, regularizer="l2"), WORDS_AND_TAGS),
    "mask and weights of steps": (tagger, Microbatch(WORDS, TAGS, 0, STEP_WEIGHTS)),
    "two masks": (two_masks, TWO),
    "mean with weights": (_loss("MeanSquaredError", "mean_with_sample_weight"), WEIGHTED),
    "sum": (_loss("MeanSquaredError", "sum"), WEIGHTED),
    "no reduction": (_loss("MeanSquaredError", "none"), SQUARES),
    "sum and regularizer": (
        lambda tf: dense(tf, lambda y, p: tf.keras.ops.sum((y - p) ** 2), kernel_regularizer="l2"),
        SQUARES,
    ),
    "function of each sample": (
        lambda tf: dense(tf, lambda y, p: tf.keras.ops.abs(y - p)[:, 0]),
        WEIGHTED,
    ),
    "mean of a function": (
        lambda tf: dense(tf, lambda y, p: tf.keras.ops.mean(tf.keras.ops.abs(y - p))),
        SQUARES,
    ),
    "activity": (lambda tf: dense(tf, activity_regularizer="l2"), SQUARES),
    "added values of samples": (lambda tf: _adding(tf, lambda o, x: o.sum(x**2, 1)), SQUARES),
    "added mean": (
        lambda tf: _adding(tf, lambda o, x: o.mean(x**2), bias_regularizer="l1"),
        SQUARES,
    ),
    "endpoint": (lambda tf: endpoint(tf, "sum_over_batch_size"), ENDPOINT),
    "endpoint with weights": (lambda tf: endpoint(tf, "mean_with_sample_weight"), ENDPOINT),
    "own loss": (own_loss, SQUARES),
}


HERE = (
    *("mask and weights of steps", "two masks", "mean with weights", "sum", "sum and regularizer"),
    *("function of each sample", "mean of a function", "activity", "added mean"),
    *("endpoint with weights", "own loss"),
)
"""The others are simpler forms of these, or what two of these have together."""


@pytest.mark.parametrize("case", shortened(CASES, HERE))
def test_a_step_in_parts_is_the_step_of_keras(tf: SimpleNamespace, case: str) -> None:
    make, batch = CASES[case]

    assert_step_of_keras(tf, make, batch, count=3)


@pytest.mark.parametrize(
    "case", shortened(["two masks", "own loss", "sum and regularizer"], here=["own loss"])
)
def test_two_parts_and_validation_are_right_too(tf: SimpleNamespace, case: str) -> None:
    make, batch = CASES[case]
    first = parts_of(batch, 2)[0]
    replica = tf.replica(fresh_model(tf, make), first.x, first.y, first.weights)

    logs = replica.model.test_on_batch(*batch.parts, return_dict=True)

    for count in (1, 2, 3):
        assert evaluated_in_parts(replica, batch, count=count) == pytest.approx(logs, rel=1e-5)


def test_a_batch_without_valid_steps_changes_nothing(tf: SimpleNamespace) -> None:
    empty = Microbatch(np.zeros_like(WORDS), TAGS, 0)

    assert_step_of_keras(tf, tagger, empty, count=2)
