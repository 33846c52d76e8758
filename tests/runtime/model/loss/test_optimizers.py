"""Each optimizer, with its clipping and decay, makes the step of Keras from a batch in parts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from extended import shortened
from keras_oracle import assert_step_of_keras

from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(8)
X = RANDOM.normal(size=(20, 4)).astype(np.float32)
LABELS = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "clipnorm": 0.01},
    "RMSprop": {"centered": True, "clipvalue": 0.005},
    "AdamW": {"global_clipnorm": 0.02, "weight_decay": 0.1},
    "Adam": {"gradient_accumulation_steps": 2},
    "Adadelta": {"global_clipnorm": 0.05},
    "Adafactor": {"clipvalue": 0.5},
    "Adagrad": {"clipnorm": 0.1, "weight_decay": 0.01},
    "Adamax": {"clipvalue": 0.05},
    "Nadam": {"weight_decay": 0.02},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Lion": {},
    "Lamb": {},
    "Muon": {},
}


# Each way of clipping, decay and accumulation; the others differ in Keras's own arithmetic.
@pytest.mark.parametrize("name", shortened(OPTIMIZERS, here=["AdamW"]))
def test_a_step_in_three_parts_is_the_step_of_keras(tf: SimpleNamespace, name: str) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Dense(3, activation="tanh"), layers.Dense(1)])
        optimizer = getattr(tf.keras.optimizers, name)(learning_rate=0.01, **OPTIMIZERS[name])
        model.compile(optimizer=optimizer, loss="mse")
        return model

    assert_step_of_keras(tf, make, Microbatch(X, LABELS, 0), count=3, rtol=1e-3)


SCHEDULES: dict[str, dict[str, Any]] = {
    "CosineDecay": {"decay_steps": 3, "warmup_target": 0.05, "warmup_steps": 1},
    "CosineDecayRestarts": {"first_decay_steps": 2},
    "ExponentialDecay": {"decay_steps": 2, "decay_rate": 0.5, "staircase": True},
    "InverseTimeDecay": {"decay_steps": 1, "decay_rate": 0.5},
    "PiecewiseConstantDecay": {"boundaries": [0, 1], "values": [0.1, 0.01, 0.001]},
    "PolynomialDecay": {"decay_steps": 3},
}


@pytest.mark.parametrize("name", shortened(SCHEDULES, here=["CosineDecay"]))
def test_a_schedule_counts_steps_and_not_parts(tf: SimpleNamespace, name: str) -> None:
    def make(tf: SimpleNamespace) -> Any:
        settings = SCHEDULES[name]
        rate = {} if name == "PiecewiseConstantDecay" else {"initial_learning_rate": 0.1}
        schedule = getattr(tf.keras.optimizers.schedules, name)(**rate, **settings)
        return one_layer(tf, tf.keras.optimizers.SGD(schedule, momentum=0.5))

    assert_step_of_keras(tf, make, Microbatch(X, LABELS, 0), count=3)


def one_layer(tf: SimpleNamespace, optimizer: Any, **settings: Any) -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(3, activation="tanh"), layers.Dense(1)])
    model.compile(optimizer=optimizer, **{"loss": "mse", **settings})
    return model


def without_bias(tf: SimpleNamespace) -> Any:
    """Return an optimizer whose decay leaves out biases."""
    optimizer = tf.keras.optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def scaled_by_hand(tf: SimpleNamespace) -> Any:
    """Return an optimizer that scales the loss of a model in float32."""
    inner = tf.keras.optimizers.Adam(0.01, global_clipnorm=0.1)
    return tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=8, dynamic_growth_steps=1)


def centralized(tf: SimpleNamespace) -> Any:
    """Return an optimizer with a way of its own to apply gradients: Keras calls that one."""

    class Centralized(tf.keras.optimizers.SGD):  # type: ignore[misc,name-defined]
        def apply_gradients(self, grads_and_vars: Any) -> Any:
            reduced = [
                (g - tf.keras.ops.mean(g, axis=0, keepdims=True) if len(g.shape) > 1 else g, v)
                for g, v in grads_and_vars
            ]
            return super().apply_gradients(reduced)

    return Centralized(0.5)


@pytest.mark.parametrize(
    "optimizer",
    shortened([without_bias, scaled_by_hand, centralized], here=[without_bias, centralized]),
)
def test_an_optimizer_that_is_set_up_by_hand(
    tf: SimpleNamespace, optimizer: Callable[[SimpleNamespace], Any]
) -> None:
    def make(tf: SimpleNamespace) -> Any:
        return one_layer(tf, optimizer(tf))

    assert_step_of_keras(tf, make, Microbatch(X, LABELS, 0), count=3, rtol=1e-3)


class Farthest(keras.metrics.Metric):  # type: ignore[misc,name-defined]
    """A metric of the script's own, whose state is a sum over samples."""

    def __init__(self) -> None:
        super().__init__(name="farthest")
        self.sum = self.add_variable((), "zeros", name="sum")
        self.squares = self.add_variable((3,), "zeros", name="squares")

    def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
        self.sum.assign(self.sum + keras.ops.sum(y * prediction))
        self.squares.assign(self.squares + keras.ops.sum(prediction**2, axis=0))

    def result(self) -> Any:
        return self.sum / keras.ops.sum(keras.ops.sqrt(self.squares))


CLASSES = np.arange(len(X)) % 3

METRICS: dict[str, tuple[Any, Callable[[Any], list[Any]]]] = {
    "binary": (
        LABELS,
        lambda metrics: [
            metrics.AUC(name="auc"),
            metrics.F1Score(average="micro", threshold=0.5, name="f1"),
            metrics.BinaryIoU(name="iou"),
            metrics.R2Score(name="r2"),
            metrics.RootMeanSquaredError(name="rmse"),
            metrics.Precision(name="precision"),
            metrics.FalseNegatives(name="fn"),
            metrics.PrecisionAtRecall(0.5, name="par"),
        ],
    ),
    "categorical": (
        np.eye(3, dtype=np.float32)[CLASSES],
        lambda metrics: [
            Farthest(),
            metrics.CategoricalHinge(name="hinge"),
            metrics.CosineSimilarity(name="cosine"),
            metrics.KLDivergence(name="kl"),
            metrics.OneHotIoU(num_classes=3, target_class_ids=[0, 2], name="iou"),
            metrics.OneHotMeanIoU(num_classes=3, name="mean_iou"),
            metrics.SensitivityAtSpecificity(0.5, name="sas"),
            metrics.TopKCategoricalAccuracy(k=2, name="top"),
        ],
    ),
    "sparse_categorical": (
        CLASSES,
        lambda metrics: [
            metrics.MeanIoU(num_classes=3, sparse_y_pred=False, name="mean_iou"),
            metrics.SparseTopKCategoricalAccuracy(k=2, name="top"),
        ],
    ),
}


@pytest.mark.parametrize("kind", METRICS)
def test_metrics_are_those_of_keras(tf: SimpleNamespace, kind: str) -> None:
    targets, metrics = METRICS[kind]

    def make(tf: SimpleNamespace) -> Any:
        units, activation = (1, "sigmoid") if kind == "binary" else (3, "softmax")
        model = keras.Sequential([keras.layers.Dense(units, activation=activation)])
        model.compile("sgd", f"{kind}_crossentropy", metrics=metrics(keras.metrics))
        return model

    assert_step_of_keras(tf, make, Microbatch(X, targets, 0), count=3)
