"""Each optimizer, with its clipping and decay, makes the step of Keras from a batch in parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
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
    "Adamax": {},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Lion": {},
    "Lamb": {},
    "Muon": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_in_three_parts_is_the_step_of_keras(tf: SimpleNamespace, name: str) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Dense(3, activation="tanh"), layers.Dense(1)])
        optimizer = getattr(tf.keras.optimizers, name)(learning_rate=0.01, **OPTIMIZERS[name])
        model.compile(optimizer=optimizer, loss="mse")
        return model

    assert_step_of_keras(tf, make, Microbatch(X, LABELS, 0), count=3, rtol=1e-3)


def test_metrics_that_count_are_those_of_keras(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers, metrics = tf.keras.layers, tf.keras.metrics
        model = tf.keras.Sequential([layers.Dense(1, activation="sigmoid")])
        shown = [
            metrics.AUC(name="auc"),
            metrics.F1Score(average="micro", threshold=0.5, name="f1"),
            metrics.BinaryIoU(name="iou"),
            metrics.R2Score(name="r2"),
            metrics.RootMeanSquaredError(name="rmse"),
            metrics.Precision(name="precision"),
            metrics.FalseNegatives(name="fn"),
            metrics.PrecisionAtRecall(0.5, name="par"),
        ]
        model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=shown)
        return model

    assert_step_of_keras(tf, make, Microbatch(X, LABELS, 0), count=3)
