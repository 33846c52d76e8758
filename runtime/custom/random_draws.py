"""Random operations of TensorFlow, drawn from a seed of the microbatch.

``tf.random`` keeps hidden state in its operations, which no worker can hand to another.
While a script's own step is traced, each such operation is replaced by a stateless one.
Its seed is that of the microbatch and the number of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

_Functions: TypeAlias = dict[str, Callable[..., Any]]


@contextmanager
def draws_from(seed: Any) -> Iterator[None]:
    """Let operations of ``tf.random`` draw from ``seed``, a tensor of two integers."""
    drawn = 0

    def next_seed() -> Any:
        nonlocal drawn
        drawn += 1
        return seed + tf.constant([0, drawn], seed.dtype)

    stand_ins: _Functions = {
        "random_standard_normal": lambda shape, dtype, **_: tf.random.stateless_normal(
            shape, next_seed(), dtype=dtype
        ),
        "random_uniform": lambda shape, dtype, **_: tf.random.stateless_uniform(
            shape, next_seed(), dtype=dtype
        ),
        "random_uniform_int": lambda shape, minval, maxval, **_: tf.random.stateless_uniform(
            shape, next_seed(), minval=minval, maxval=maxval, dtype=minval.dtype
        ),
        "truncated_normal": lambda shape, dtype, **_: tf.random.stateless_truncated_normal(
            shape, next_seed(), dtype=dtype
        ),
        "random_shuffle": lambda value, **_: tf.random.experimental.stateless_shuffle(
            value, next_seed()
        ),
    }
    with _replaced(gen_random_ops, stand_ins):
        yield


@contextmanager
def no_noise() -> Iterator[None]:
    """Let every draw be one constant, so that parts of a batch can be compared with the whole."""

    def constant(shape: Any, value: float, dtype: Any) -> Any:
        return tf.cast(tf.fill(shape, value), dtype or keras.config.floatx())

    def normal(
        shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> Any:
        return constant(shape, mean + 0.5 * stddev, dtype)

    def uniform(
        shape: Any, minval: float = 0.0, maxval: float = 1.0, dtype: Any = None, **_: Any
    ) -> Any:
        return constant(shape, 0.7 * minval + 0.3 * maxval, dtype)

    of_keras: _Functions = {
        "normal": normal,
        "truncated_normal": normal,
        "uniform": uniform,
        "dropout": lambda inputs, *_, **__: inputs,
        "shuffle": lambda x, *_, **__: x,
    }
    of_tensorflow: _Functions = {
        "random_standard_normal": lambda shape, dtype, **_: constant(shape, 0.5, dtype),
        "random_uniform": lambda shape, dtype, **_: constant(shape, 0.3, dtype),
        "truncated_normal": lambda shape, dtype, **_: constant(shape, 0.5, dtype),
        "random_shuffle": lambda value, **_: value,
    }
    with _replaced(keras.src.backend.random, of_keras), _replaced(gen_random_ops, of_tensorflow):
        yield


@contextmanager
def _replaced(module: Any, functions: _Functions) -> Iterator[None]:
    originals = {name: getattr(module, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(module, name, function)
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)
