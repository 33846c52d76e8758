"""A variable that a pipeline reads may not change during a training; it is named when it does."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.data.feed import Feed, FeedTerms
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.communicator import LocalCommunicator

pytestmark = pytest.mark.tensorflow

BATCHES = 4
NAMED = r"reads the variable 'scale', which has changed since fit\(\) began: read it in the model"


def scaled(variable: Any) -> Any:
    """Return a dataset of 4 batches that reads the variable, within an inner dataset."""
    import tensorflow as tf

    def pair(number: Any) -> Any:
        value = tf.cast(number, tf.float32) * tf.reduce_sum(variable)
        return value[None], value[None]

    def inner(number: Any) -> Any:
        return tf.data.Dataset.from_tensors(number).map(pair)

    numbers = tf.data.Dataset.range(BATCHES * 2).interleave(inner).batch(2).prefetch(1)
    return numbers.apply(tf.data.experimental.assert_cardinality(BATCHES))


def feed(dataset: Any) -> Feed:
    from holdfast.runtime.data.tf_source import dataset_source

    return Feed(dataset_source(dataset, 7), FeedTerms(BATCHES))


def read(found: Feed, step: int) -> float:
    batch = found.train_batch(step, LocalCommunicator())
    return float(batch.parts[0].sum())


def test_variable_that_never_changes_is_read() -> None:
    import tensorflow as tf

    found = feed(scaled(tf.Variable(2.0, name="scale")))
    values = [read(found, step) for step in range(BATCHES + 1)]
    assert values == [2.0, 10.0, 18.0, 26.0, 2.0]


@pytest.mark.parametrize("step", [2, BATCHES])
def test_small_variable_that_changes_is_named_at_the_next_batch(step: int) -> None:
    import tensorflow as tf

    scale = tf.Variable(2.0, name="scale")
    found = feed(scaled(scale))
    for before in range(step):
        read(found, before)
    scale.assign(3.0)
    with pytest.raises(ProgramError, match=NAMED):
        read(found, step)


def test_large_variable_that_changes_is_named_at_the_next_pass() -> None:
    import tensorflow as tf

    scale = tf.Variable(tf.ones(5000), name="scale")
    found = feed(scaled(scale))
    read(found, 0)
    scale[17].assign(3.0)
    for step in range(1, BATCHES):
        read(found, step)
    with pytest.raises(ProgramError, match=NAMED):
        read(found, BATCHES)


def test_states_of_random_layers_may_change() -> None:
    import keras
    import tensorflow as tf

    noise = keras.layers.GaussianNoise(0.1, seed=3)

    def noisy(number: Any) -> Any:
        value = noise(tf.cast(number, tf.float32)[None], training=True)
        return value, value

    found = feed(tf.data.Dataset.range(BATCHES * 2).map(noisy).batch(2))
    read(found, 0)
    before = noise.seed_generator.state.numpy().tolist()
    noise(tf.ones(3), training=True)
    read(found, 1)
    assert noise.seed_generator.state.numpy().tolist() != before
