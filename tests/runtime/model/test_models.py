"""Kinds of models that a Keras replica takes, and that it trains them as Keras does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from custom_models import share_above
from extended import shortened
from keras_harness import (
    FIRST,
    IMAGES,
    LABELS,
    build,
    bytes_of,
    contribution,
    copy_of,
    dense,
)
from keras_oracle import assert_step_of_keras

from holdfast.runtime.model.replica import Microbatch, make_model

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    "optimizer",
    shortened(["SGD", "AdamW", "RMSprop"], here=["AdamW"]),
)
def test_a_step_is_the_step_of_keras(tf: SimpleNamespace, optimizer: str) -> None:
    """One microbatch that is the whole batch, without randomness, trains as Model.fit does."""
    settings = {"learning_rate": 0.01}
    if optimizer == "SGD":
        settings |= {"momentum": 0.9}

    def make(tf: SimpleNamespace) -> Any:
        return dense(tf, optimizer=getattr(tf.keras.optimizers, optimizer)(**settings))

    replica = build(tf, make)
    batch = FIRST
    for _ in range(3):
        replica.apply(contribution(replica, batch), 7)
    ours = copy_of(replica.state())

    fitted = build(tf, make)
    fitted.model.fit(IMAGES[:7], LABELS[:7], batch_size=7, epochs=3, shuffle=False, verbose=0)

    for name, array in fitted.state().items():
        np.testing.assert_allclose(array, ours[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_embedding_gradients_are_dense(tf: SimpleNamespace) -> None:
    """Rows that no sample names get zero gradients, not leftovers."""

    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Embedding(11, 3), layers.GlobalAveragePooling1D(), layers.Dense(1)]
        )
        model.compile(optimizer="adam", loss="mse")
        return model

    words = np.array([[1, 2], [2, 4], [4, 4]], dtype=np.int32)
    replica = build(tf, make, x=words, y=np.ones((3, 1), np.float32))

    out = contribution(replica, Microbatch(words, np.ones((3, 1), np.float32), 0))

    rows = out[:33].reshape(11, 3)
    assert np.flatnonzero(np.abs(rows).sum(axis=1)).tolist() == [1, 2, 4]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_embedding_that_trains_otherwise_than_in_keras_is_told(
    tf: SimpleNamespace, optimizer: str
) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Embedding(11, 3), layers.Flatten(), layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse")
        return model

    words = np.array([[1, 2], [2, 4], [4, 4]], dtype=np.int32)
    replica = build(tf, make, x=words, y=np.ones((3, 1), np.float32))

    told = [line for line in replica.notices if "embedding" in line]
    assert len(told) == (optimizer == "adam")
    assert all("Adam gets the sum of a word's gradients" in line for line in told)


def test_a_frozen_layer_keeps_its_weights(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        model = dense(tf)
        model.layers[1].trainable = False
        return model

    replica = build(tf, make)
    before = copy_of(replica.state())

    replica.apply(contribution(replica, FIRST), 7)

    after = replica.state()
    changed = {name.lower() for name in after if after[name].tobytes() != before[name].tobytes()}
    assert changed == {
        "weights/sequential/dense_1/kernel",
        "weights/sequential/dense_1/bias",
        "optimizer/sgd/iteration",
    }


def test_a_variable_without_gradient_is_skipped(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Unused(tf.keras.layers.Layer):
            def build(self, shape: Any) -> None:
                self.idle = self.add_weight(shape=(5,), name="idle", initializer="ones")

            def call(self, inputs: Any) -> Any:
                return inputs

        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Flatten(), Unused(), layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.AdamW(weight_decay=0.1), loss="mse")
        return model

    replica = build(tf, make)

    replica.apply(contribution(replica, FIRST), 7)

    assert replica.shape.gradient == 48 + 16
    assert replica.state()["weights/sequential/unused/idle"].tolist() == [1.0] * 5


def test_odd_and_scalar_tensors_find_their_places(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Scale(tf.keras.layers.Layer):
            def build(self, shape: Any) -> None:
                self.factor = self.add_weight(shape=(), name="factor", initializer="ones")

            def call(self, inputs: Any) -> Any:
                return inputs * self.factor

        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Flatten(), layers.Dense(5), Scale(), layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(1.0), loss="mse")
        return model

    replica = build(tf, make)
    before = copy_of(replica.state())
    out = contribution(replica, FIRST)

    replica.apply(out, 7)

    after = replica.state()
    moved = [before[n] - after[n] for n in before if n.startswith("weights/")]
    starts = np.cumsum([0] + [-(-array.size // 16) * 16 for array in moved])
    for start, array in zip(starts, moved, strict=False):
        np.testing.assert_allclose(
            out[start : start + array.size] / 7, array.reshape(-1), rtol=1e-4
        )


def test_a_custom_loss_and_metric_are_used(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Own(tf.keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.flatten = tf.keras.layers.Flatten()
                self.dense = tf.keras.layers.Dense(1)
                self.largest = tf.keras.metrics.MeanSquaredError(name="own")

            def call(self, inputs: Any) -> Any:
                return self.dense(self.flatten(inputs))

            def compute_loss(self, x: Any, y: Any, y_pred: Any, weights: Any, **_: Any) -> Any:
                return tf.tensorflow.reduce_mean(tf.tensorflow.abs(y_pred)) * 0 + 3.0

            def compute_metrics(self, x: Any, y: Any, y_pred: Any, **_: Any) -> Any:
                self.largest.update_state(y, y)
                return self.get_metrics_result()

        model = Own()
        model.compile(optimizer="sgd")
        return model

    replica = build(tf, make)
    out = contribution(replica, FIRST)

    results = replica.results(out[replica.shape.gradient :].astype(np.float64), 7)

    assert results == {"loss": 3.0, "own": 0.0}


def test_a_loss_that_squeezes_its_targets_is_used(tf: SimpleNamespace) -> None:
    """Of a single sample it would make a scalar, for which its next operation has no axis."""

    def loss(y: Any, prediction: Any) -> Any:
        column = tf.tensorflow.stack([tf.tensorflow.squeeze(y)], axis=1)
        return tf.keras.losses.mean_squared_error(column, prediction)

    targets = LABELS.astype(np.float32)
    assert_step_of_keras(
        tf, lambda tf: dense(tf, loss=loss), Microbatch(IMAGES[:8], targets[:8], 0), count=2
    )


def test_a_metric_keeps_the_setting_in_its_variable(tf: SimpleNamespace) -> None:
    """A level that is not zero after a reset, and that an update leaves as it is."""

    def make(tf: SimpleNamespace) -> Any:
        return dense(tf, metrics=[share_above(tf)])

    batch = Microbatch(IMAGES[:12], LABELS[:12].astype(np.float32), 0)

    assert_step_of_keras(tf, make, batch, count=3)


def test_a_metric_of_several_values_is_named_by_number(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Flatten(), layers.Dense(2, activation="sigmoid")])
        metric = tf.keras.metrics.F1Score(average=None, threshold=0.5, name="f1")
        model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=[metric])
        return model

    both = np.concatenate([LABELS, 1 - LABELS], axis=1).astype(np.float32)
    replica = build(tf, make, y=both[:7])
    sums = np.empty(replica.shape.metrics, np.float32)
    replica.evaluate(Microbatch(IMAGES[:7], both[:7], 0), sums)

    assert set(replica.results(sums.astype(np.float64), 7)) == {"loss", "f1/0", "f1/1"}


def test_mixed_precision_keeps_float32_state(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Flatten(), layers.Dense(4, dtype="mixed_bfloat16"), layers.Dense(1)]
        )
        model.compile(optimizer="adam", loss="mse")
        return model

    replica = build(tf, make)
    before = replica.state()

    replica.apply(contribution(replica, FIRST), 7)

    assert replica.state()["weights/sequential/dense/kernel"].dtype == np.float32
    assert bytes_of(replica.state()) != bytes_of(before)


def test_float64_inputs_become_float32(tf: SimpleNamespace) -> None:
    replica = build(tf, dense)

    narrow = contribution(replica, FIRST)
    wide = contribution(replica, Microbatch(IMAGES[:7].astype(np.float64), LABELS[:7], 0))

    assert narrow.tobytes() == wide.tobytes()


def test_a_model_instead_of_a_function_is_taken(tf: SimpleNamespace) -> None:
    model = dense(tf)

    assert callable(model)
    assert make_model(model) is model
    assert make_model(lambda: model) is model
    assert isinstance(make_model(tf.keras.Sequential), tf.keras.Sequential)
