"""A step tried on a batch and on its parts: what the trial tells, and that it leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
import tensorflow

from holdfast.runtime.model.batch_mixing import (
    MOST_OF_A_STEP,
    try_step,
)
from holdfast.runtime.model.captured_step import OwnStep
from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(23)
X = RANDOM.uniform(1.0, 2.0, (7, 3)).astype(np.float32)

LossOf = Callable[[Any], Any]
"""A loss from the outputs of some samples, one each."""


def hinge(outputs: Any) -> Any:
    """Return a loss that has no gradient at the weights that the model begins with."""
    return tensorflow.reduce_sum(tensorflow.nn.relu(0.5 - outputs))


def mixed(outputs: Any) -> Any:
    """Return a sum beside a mean, which is neither."""
    mean = tensorflow.reduce_mean((outputs + 2.0) ** 2)
    return tensorflow.reduce_sum((outputs - 1.0) ** 2) + 9.0 * mean


class Own(keras.Model):  # type: ignore[misc,name-defined]
    """A linear model that notes how many samples its step has got."""

    def __init__(self, loss: LossOf) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.seen = self.add_weight(shape=(), trainable=False, name="seen")
        self.tracker = keras.metrics.Mean(name="loss")
        self.sizes: list[int] = []
        self._of_outputs = loss

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        (x,) = data
        self.sizes.append(len(x))
        with tensorflow.GradientTape() as tape:
            loss = self._of_outputs(self.dense(x)[:, 0])
        self.seen.assign_add(float(len(x)))
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result(), "size": 1.0 * len(x)}


def step_of(loss: LossOf) -> OwnStep:
    model = Own(loss)
    model.compile(keras.optimizers.SGD(0.1))
    model.dense.build((None, 3))
    model.optimizer.build(model.trainable_variables)
    return OwnStep(model, "train_step", ())


def batch_of(x: Any) -> Microbatch:
    return Microbatch(x, (), 0)


LOSSES: dict[str, tuple[LossOf, frozenset[int], bool]] = {
    "mean": (lambda p: tensorflow.reduce_mean((p - 1.0) ** 2), frozenset(), False),
    "sum": (lambda p: tensorflow.reduce_sum((p - 1.0) ** 2), frozenset({0}), False),
    "hinge": (hinge, frozenset({0}), False),
    "mixed": (mixed, frozenset(), True),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_parts_tell_means_sums_and_mixtures(name: str) -> None:
    loss, summed, mixes = LOSSES[name]

    found = try_step(step_of(loss), batch_of(X))

    assert found.summed == summed
    assert found.mixes_samples is mixes
    assert found.whole > 0.0


@pytest.mark.parametrize("name", ["mean", "hinge"])
def test_trial_leaves_no_trace(name: str) -> None:
    step = step_of(LOSSES[name][0])
    variables = [*step.model.variables, *step.model.optimizer.variables]
    before = [np.asarray(variable.value).tobytes() for variable in variables]

    try_step(step, batch_of(X))

    assert [np.asarray(variable.value).tobytes() for variable in variables] == before


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(7, {7, 2, 5, 4}), (2, {2, 1}), (1, {2, 1}), (MOST_OF_A_STEP + 9, {16, 5, 11, 10})],
    ids=["seven", "two", "one is taken twice", "few of many"],
)
def test_few_samples_are_cut_into_two_uneven_parts(samples: int, sizes: set[int]) -> None:
    """The first part is tried with each of its samples twice as well."""
    step = step_of(LOSSES["mean"][0])

    try_step(step, batch_of(np.resize(X, (samples, 3))))

    assert set(step.model.sizes) == sizes
