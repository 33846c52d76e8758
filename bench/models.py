"""The four models of the throughput benchmark: small, convolutional, wide, and deep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np

if TYPE_CHECKING:  # an ordinary script uses this module too, and loads nothing of holdfast
    from holdfast.runtime.model.replica import Array

CLASSES = 10
VOCABULARY = 128
WIDTH, HEADS, BLOCKS, LENGTH = 512, 8, 8, 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to train, with its samples and the batch of one worker."""

    build: Callable[[], keras.Model]
    sample: Callable[[np.random.Generator, int], Array]
    batch: int
    block_steps: int
    """Steps between two changes of method: a quarter of a second on two cores."""


def compiled(model: keras.Model) -> keras.Model:
    model.compile(
        optimizer=keras.optimizers.SGD(0.001, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def dense(*units: int) -> keras.Model:
    """Return a perceptron; the last of ``units`` are the classes."""
    layers = [keras.layers.Dense(count, activation="relu") for count in units[:-1]]
    return compiled(keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(units[-1])]))


def convolutional() -> keras.Model:
    """Return the network of TensorFlow's CIFAR-10 tutorial, on whole images."""
    layers = keras.layers
    return compiled(
        keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                layers.Conv2D(64, 5, padding="same", activation="relu"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Conv2D(64, 5, padding="same", activation="relu"),
                layers.MaxPooling2D(3, 2, padding="same"),
                layers.Flatten(),
                layers.Dense(384, activation="relu"),
                layers.Dense(192, activation="relu"),
                layers.Dense(CLASSES),
            ]
        )
    )


def transformer() -> keras.Model:
    """Return an encoder of 8 blocks."""
    layers = keras.layers
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(tokens)
    for _ in range(BLOCKS):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normal, normal)
        hidden = layers.Dense(4 * WIDTH, activation="relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(hidden)
    return compiled(keras.Model(tokens, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))))


def _floats(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda random, count: random.standard_normal((count, *shape), np.float32)


def _tokens(random: np.random.Generator, count: int) -> Array:
    return random.integers(0, VOCABULARY, (count, LENGTH), np.int32)


SUBJECTS = {
    "dnn": Subject(lambda: dense(512, 512, CLASSES), _floats(784), 128, 30),
    "cnn": Subject(convolutional, _floats(32, 32, 3), 128, 2),
    "mlp": Subject(lambda: dense(4096, 4096, 1024, CLASSES), _floats(784), 32, 2),
    "transformer": Subject(transformer, _tokens, 4, 2),
}
