"""A validation on a pipeline without end begins anew each time, as in plain ``fit``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from local_communicator import LocalCommunicator

from holdfast.runtime.keras.fit_call import FitCall, supply_of

pytestmark = pytest.mark.tensorflow

VALIDATIONS = 3
X = np.ones((4, 1), np.float32)


def batches() -> Iterator[Any]:
    for value in range(1000):
        yield np.full((4, 1), value, np.float32), np.full((4, 1), value, np.float32)


def generator() -> Any:
    return batches()


def repeated_samples() -> Any:
    return numbers().repeat().batch(4)


def repeated_batches() -> Any:
    return numbers().batch(4).repeat()


def through_python() -> Any:
    spec = tf.TensorSpec((4, 1), tf.float32)
    endless = tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))
    return endless.repeat()


def endless_py_dataset() -> Any:
    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index: int) -> Any:
            return np.full((4, 1), index, np.float32), np.full((4, 1), index, np.float32)

    return Endless()


def numbers() -> Any:
    return tf.data.Dataset.range(7).map(lambda n: (tf.cast([n], tf.float32),) * 2)


def in_plain_keras(pipeline: Any, steps: int) -> list[float]:
    """Return the means of the targets, by a model that predicts 0."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    given = {"validation_data": pipeline, "validation_steps": steps}
    history = model.fit(X, X, epochs=VALIDATIONS, verbose=0, **given).history
    return [round(loss, 4) for loss in history["val_loss"]]


def in_ours(pipeline: Any, steps: int, first: int = 0) -> list[float]:
    call = FitCall(X, X, validation_data=pipeline, validation_steps=steps, epochs=VALIDATIONS)
    feed: Any = supply_of(call, 7, lambda text: None).validation
    found = []
    for validation in range(first, VALIDATIONS):
        read = [
            feed.validation_batch((validation, step), LocalCommunicator()) for step in range(steps)
        ]
        targets = np.concatenate([batch.parts[1] for batch in read])
        found.append(round(float(targets.mean()), 4))
    return found


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (generator, 2),  # with more, Keras loses batches by chance: it reads ahead
        (repeated_samples, 1),
        (repeated_batches, 1),
        (repeated_batches, 3),
        (through_python, 2),
        (endless_py_dataset, 2),
    ],
)
def test_each_validation_has_the_batches_of_plain_fit(make: Any, steps: int) -> None:
    assert in_ours(make(), steps) == in_plain_keras(make(), steps)


def test_generator_goes_on_after_the_batches_that_keras_has_looked_at() -> None:
    assert in_ours(generator(), 4) == [1.5, (0 + 1 + 4 + 5) / 4, (0 + 1 + 6 + 7) / 4]


@pytest.mark.parametrize("make", [generator, repeated_samples, through_python, endless_py_dataset])
def test_resume_validates_on_the_same_batches(make: Any) -> None:
    whole = in_ours(make(), 3)
    assert [in_ours(make(), 3, first) for first in (1, 2)] == [whole[1:], whole[2:]]
