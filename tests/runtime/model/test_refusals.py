"""Models that no replica could be exact of are refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras_harness import build, dense

from holdfast.runtime.errors import ProgramError

pytestmark = pytest.mark.tensorflow


def _refused(tf: SimpleNamespace, make: Callable[[SimpleNamespace], Any]) -> str:
    with pytest.raises(ProgramError) as caught:
        build(tf, make)
    return str(caught.value)


def test_a_loss_without_gradients_is_refused(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        return dense(tf, loss=lambda y, prediction: tf.tensorflow.constant(1.0))

    assert "depends on none" in _refused(tf, make)


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


def test_what_is_no_model_is_refused(tf: SimpleNamespace) -> None:
    assert "but int was given" in _refused(tf, lambda _: 3)


def test_a_model_that_is_not_compiled_is_refused(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        return tf.keras.Sequential([tf.keras.layers.Dense(1)], name="plain")

    assert "'plain' is not compiled" in _refused(tf, make)


def test_trainable_variables_of_another_type_are_refused(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        model = tf.keras.Sequential(
            [tf.keras.layers.Flatten(), tf.keras.layers.Dense(1, dtype="float64")]
        )
        model.compile(optimizer="sgd", loss="mse")
        return model

    assert "dense/kernel' is float64" in _refused(tf, make)


def test_integer_state_of_the_samples_is_refused_by_name(tf: SimpleNamespace) -> None:
    def call(layer: Any, inputs: Any) -> Any:
        largest = tf.keras.ops.max(100 * inputs)
        layer.state.assign(tf.keras.ops.cast(largest, "int32"))
        return inputs

    def make(tf: SimpleNamespace) -> Any:
        return _with_layer(tf, call, dtype="int32", trainable=False, name="largest")

    message = _refused(tf, make)

    assert "odd/largest' of type int32" in message
    assert "let it count steps or samples" in message


def test_state_that_sums_over_samples_and_decays_is_refused_by_name(tf: SimpleNamespace) -> None:
    def call(layer: Any, inputs: Any) -> Any:
        layer.state.assign(0.9 * layer.state + tf.keras.ops.sum(inputs**2))
        return inputs

    message = _refused(tf, lambda tf: _with_layer(tf, call, trainable=False, name="power"))

    assert "the model's call adds 'sequential/odd/power' up over the samples" in message


def test_state_that_is_neither_mean_nor_sum_is_named(tf: SimpleNamespace) -> None:
    def call(layer: Any, inputs: Any) -> Any:
        layer.state.assign(tf.keras.ops.maximum(layer.state, tf.keras.ops.max(inputs)))
        return inputs

    replica = build(tf, lambda tf: _with_layer(tf, call, trainable=False, name="largest"))

    (notice,) = replica.notices
    assert "state 'sequential/odd/largest' is neither a mean nor a sum over samples" in notice


def test_assigning_a_trainable_variable_is_refused_by_name(tf: SimpleNamespace) -> None:
    def call(layer: Any, inputs: Any) -> Any:
        layer.state.assign(layer.state + 1)
        return inputs * layer.state

    def make(tf: SimpleNamespace) -> Any:
        return _with_layer(tf, call, name="gain")

    assert "assigns its trainable variable 'sequential/odd/gain'" in _refused(tf, make)


def test_a_raw_variable_that_changes_is_refused(tf: SimpleNamespace) -> None:
    def call(layer: Any, inputs: Any) -> Any:
        layer.raw.assign_add(1.0)
        return inputs

    assert "behind Keras" in _refused(tf, lambda tf: _with_layer(tf, call))


def test_a_stateful_layer_is_refused(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Reshape((6, 6)), layers.SimpleRNN(2, stateful=True, name="memory")]
        )
        model.compile(optimizer="sgd", loss="mse")
        return model

    assert "'memory' is stateful" in _refused(tf, make)


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
