"""Models that no replica could be exact of are refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras_harness import build, dense

from holdfast.runtime.errors import ProgramError

pytestmark = pytest.mark.tensorflow


def _with_layer(tf: SimpleNamespace, call: Callable[[Any, Any], Any], **weight: Any) -> Any:
    class Odd(tf.keras.layers.Layer):
        def build(self, shape: Any) -> None:
            if weight:
                self.state = self.add_weight(**{"shape": (), "initializer": "zeros", **weight})
            self.raw = tf.tensorflow.Variable(0.0)

        def call(self, inputs: Any, training: Any = False) -> Any:  # noqa: FBT002
            return call(self, inputs) if training else inputs

    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Flatten(), Odd(), layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def integers(layer: Any, inputs: Any) -> Any:
    layer.state.assign(keras.ops.cast(keras.ops.max(100 * inputs), "int32"))
    return inputs


def sums(layer: Any, inputs: Any) -> Any:
    layer.state.assign(0.9 * layer.state + keras.ops.sum(inputs**2))
    return inputs


def largest(layer: Any, inputs: Any) -> Any:
    layer.state.assign(keras.ops.maximum(layer.state, keras.ops.max(inputs)))
    return inputs


def gains(layer: Any, inputs: Any) -> Any:
    layer.state.assign(layer.state + 1)
    return inputs * layer.state


def raw(layer: Any, inputs: Any) -> Any:
    layer.raw.assign_add(1.0)
    return inputs


def of_layers(*layers: Any) -> Any:
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model


REFUSED: dict[str, tuple[Callable[[SimpleNamespace], Any], str]] = {
    "loss without gradients": (
        lambda tf: dense(tf, loss=lambda y, prediction: tf.tensorflow.constant(1.0)),
        "depends on none",
    ),
    "no model": (lambda tf: 3, "but int was given"),
    "not compiled": (lambda tf: keras.Sequential(name="plain"), "'plain' is not compiled"),
    "float64": (
        lambda tf: of_layers(keras.layers.Flatten(), keras.layers.Dense(1, dtype="float64")),
        "dense/kernel' is float64",
    ),
    "stateful layer": (
        lambda tf: of_layers(
            keras.layers.Reshape((6, 6)), keras.layers.SimpleRNN(2, stateful=True, name="memory")
        ),
        "'memory' is stateful",
    ),
    "integers of samples": (
        lambda tf: _with_layer(tf, integers, dtype="int32", trainable=False, name="largest"),
        "odd/largest' of type int32.*let it count steps or samples",
    ),
    "sum that decays": (
        lambda tf: _with_layer(tf, sums, trainable=False, name="power"),
        "the model's call adds 'sequential/odd/power' up over the samples",
    ),
    "assigned weight": (
        lambda tf: _with_layer(tf, gains, name="gain"),
        "assigns its trainable variable 'sequential/odd/gain'",
    ),
    "raw variable": (lambda tf: _with_layer(tf, raw), "behind Keras"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_no_replica_could_be_exact_of_is_refused(tf: SimpleNamespace, name: str) -> None:
    make, words = REFUSED[name]

    with pytest.raises(ProgramError, match=words):
        build(tf, make)


def test_state_that_is_neither_mean_nor_sum_is_named(tf: SimpleNamespace) -> None:
    replica = build(tf, lambda tf: _with_layer(tf, largest, trainable=False, name="largest"))

    (notice,) = replica.notices
    assert "state 'sequential/odd/largest' is neither a mean nor a sum over samples" in notice


def test_a_metric_that_is_no_sum_is_left_out_and_named(tf: SimpleNamespace) -> None:
    class Largest(tf.keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_variable((), "zeros", name="value")

        def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
            self.value.assign(tf.keras.ops.maximum(self.value, tf.keras.ops.max(prediction)))

        def result(self) -> Any:
            return self.value

    replica = build(tf, lambda tf: dense(tf, metrics=[Largest(), "mae"]))

    results = replica.results(np.ones(replica.shape.metrics), 1)

    assert set(results) == {"loss", "mae"}
    (notice,) = replica.notices
    assert "metric 'largest' is left out" in notice


def test_value_of_compute_metrics_that_no_metric_gives_is_named(tf: SimpleNamespace) -> None:
    class Doubled(tf.keras.Model):
        def compute_metrics(self, *arguments: Any, **by: Any) -> Any:
            found = super().compute_metrics(*arguments, **by)
            return {**found, "twice": 2 * found["mae"]}

    def make(tf: SimpleNamespace) -> Any:
        images = tf.keras.Input((6, 6, 1))
        flat = tf.keras.layers.Flatten()(images)
        model = Doubled(images, tf.keras.layers.Dense(1)(flat))
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    (notice,) = build(tf, make).notices

    assert notice.startswith("'twice', which the model's compute_metrics returns, is left out")
