"""Random operations of TensorFlow and Keras, taken over while a step is traced or tried.

``tf.random`` keeps hidden state in its operations, which no worker can hand to another.  While a
step or a call of a model is traced, each such operation is replaced by a stateless one.  Its seed
is that of the microbatch and the number of the operation.  Draws of ``keras.random`` without a seed
are numbered in the same way.

In a trial each sample draws the same, so that parts of a batch can be compared with it.  The first
axis of a draw is taken for that of the samples.  Each sample draws the same row, and an operation
draws the same row at each trial.  Dropout drops nothing, a shuffle leaves the order, and
normalisation of batches uses its moving statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from holdfast.runtime.errors import ProgramError

Functions: TypeAlias = Mapping[str, Callable[..., Any]]


@contextmanager
def replaced(owner: Any, functions: Functions) -> Iterator[None]:
    """Let a module or a class have other functions of these names."""
    originals = {name: getattr(owner, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(owner, name, function)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


@contextmanager
def draws_from(seed: Any) -> Iterator[list[Any]]:
    """Let operations of ``tf.random`` draw from ``seed``, a tensor of two integers.

    Yields the seeds of those that have drawn.
    """
    drawn: list[Any] = []
    outer = _graph()

    def next_seed() -> Any:
        _check_no_loop(outer)
        drawn.append(seed + tf.constant([0, len(drawn) + 1], seed.dtype))
        return drawn[-1]

    with replaced(gen_random_ops, _stateless(next_seed)), unseeded(next_seed):
        yield drawn


@contextmanager
def unseeded(next_seed: Callable[[], Any]) -> Iterator[None]:
    """Let draws of ``keras.random`` without a seed take theirs from ``next_seed``."""
    generator = SimpleNamespace(next=lambda ordered=True: next_seed())  # Keras's
    with replaced(keras.src.random.seed_generator, {"global_seed_generator": lambda: generator}):
        yield


def _stateless(next_seed: Callable[[], Any]) -> Functions:
    of = tf.random
    return {
        "random_standard_normal": lambda shape, dtype, **_: of.stateless_normal(
            shape, next_seed(), dtype=dtype
        ),
        "random_uniform": lambda shape, dtype, **_: of.stateless_uniform(
            shape, next_seed(), dtype=dtype
        ),
        "random_uniform_int": lambda shape, minval, maxval, **_: of.stateless_uniform(
            shape, next_seed(), minval=minval, maxval=maxval, dtype=minval.dtype
        ),
        "truncated_normal": lambda shape, dtype, **_: of.stateless_truncated_normal(
            shape, next_seed(), dtype=dtype
        ),
        "random_shuffle": lambda value, **_: of.experimental.stateless_shuffle(value, next_seed()),
        "multinomial": lambda logits, samples, output_dtype, **_: of.stateless_categorical(
            logits, samples, next_seed(), dtype=output_dtype or tf.int64
        ),
        "random_gamma": lambda shape, alpha, **_: of.stateless_gamma(
            tf.concat([shape, tf.shape(alpha)], 0), next_seed(), alpha, dtype=alpha.dtype
        ),
        "random_poisson_v2": lambda shape, rate, dtype, **_: of.stateless_poisson(
            tf.concat([shape, tf.shape(rate)], 0), next_seed(), rate, dtype=dtype
        ),
    }


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _check_no_loop(outer: Any) -> None:
    """Raise ProgramError within a loop of the graph, all rounds of which would draw the same."""
    graph = _graph()
    while graph is not None and graph is not outer:
        name = getattr(graph, "name", "")
        if "while" in name or "loop_body" in name:
            raise ProgramError(
                "random numbers are drawn within a loop of TensorFlow (tf.map_fn, tf.while_loop, "
                "tf.vectorized_map), each round of which would draw the same on microbatches: "
                "draw the numbers of all rounds before the loop"
            )
        graph = getattr(graph, "outer_graph", None)


_Distribution: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Any]

_STILL = 0.3
"""The number that is drawn where the shape is not known."""


class _Rows:
    """Draws rows from generators that are numbered by operation."""

    def __init__(self) -> None:
        self._drawn = 0

    def draw(self, shape: Any, dtype: Any, distribution: _Distribution) -> Any:
        """Return one row of the distribution, repeated along the first axis."""
        self._drawn += 1
        random = np.random.default_rng(self._drawn)
        known = tf.get_static_value(shape)
        if known is None:
            return tf.cast(tf.fill(shape, _STILL), dtype)
        row = distribution(random, (1, *known[1:]) if len(known) else ())
        return tf.broadcast_to(tf.cast(tf.constant(row), dtype), shape)

    def normal(self, shape: Any, dtype: Any) -> Any:
        return self.draw(shape, dtype, lambda random, size: random.standard_normal(size))

    def truncated(self, shape: Any, dtype: Any) -> Any:
        return self.draw(shape, dtype, lambda random, size: random.uniform(-1.0, 1.0, size))

    def uniform(self, shape: Any, dtype: Any) -> Any:
        return self.draw(shape, dtype, lambda random, size: random.random(size))

    def integers(self, shape: Any, low: Any, high: Any) -> Any:
        part = self.uniform(shape, "float64")
        width = tf.cast(tf.cast(high, "float64") - tf.cast(low, "float64"), "float64")
        return tf.cast(low, low.dtype) + tf.cast(tf.floor(part * width), low.dtype)


@contextmanager
def equal_draws() -> Iterator[None]:
    """Let each sample of a batch draw the same, and switch off what makes samples unlike."""
    rows = _Rows()
    zeros = tf.zeros((2,), tf.int32)
    with (
        replaced(gen_random_ops, _stateful(rows)),
        replaced(gen_stateless_random_ops_v2, _equal_stateless(rows)),
        replaced(gen_stateless_random_ops, {"stateless_multinomial": _likeliest}),
        replaced(keras.src.backend.random, dict.fromkeys(("dropout", "shuffle"), _as_it_is)),
        replaced(keras.layers.BatchNormalization, _normalisation()),
        unseeded(lambda: zeros),
    ):
        yield


def _stateful(rows: _Rows) -> Functions:
    return {
        "random_standard_normal": lambda shape, dtype, **_: rows.normal(shape, dtype),
        "random_uniform": lambda shape, dtype, **_: rows.uniform(shape, dtype),
        "truncated_normal": lambda shape, dtype, **_: rows.truncated(shape, dtype),
        "random_uniform_int": lambda shape, low, high, **_: rows.integers(shape, low, high),
        "random_shuffle": _as_it_is,
        "multinomial": _likeliest,
        "random_gamma": lambda shape, alpha, **_: tf.broadcast_to(
            alpha, tf.concat([shape, tf.shape(alpha)], 0)
        ),
        "random_poisson_v2": lambda shape, rate, dtype, **_: tf.cast(
            tf.broadcast_to(rate, tf.concat([shape, tf.shape(rate)], 0)), dtype
        ),
    }


def _equal_stateless(rows: _Rows) -> Functions:
    """Return the operations behind ``keras.random`` and ``tf.random.stateless_*``."""
    return {
        "stateless_random_normal_v2": lambda shape, dtype, **_: rows.normal(shape, dtype),
        "stateless_random_uniform_v2": lambda shape, dtype, **_: rows.uniform(shape, dtype),
        "stateless_truncated_normal_v2": lambda shape, dtype, **_: rows.truncated(shape, dtype),
        "stateless_random_uniform_int_v2": lambda shape, minval, maxval, **_: rows.integers(
            shape, minval, maxval
        ),
        "stateless_random_gamma_v3": lambda shape, alpha, **_: tf.broadcast_to(alpha, shape),
        "stateless_shuffle": _as_it_is,
    }


def _as_it_is(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _likeliest(logits: Any, samples: Any, *_: Any, output_dtype: Any = None, **__: Any) -> Any:
    """Return the likeliest class of each sample, as often as classes are drawn."""
    found = tf.argmax(logits, axis=-1, output_type=output_dtype or tf.int64)
    return tf.repeat(found[:, None], samples, axis=1)


def _normalisation() -> Functions:
    original = keras.layers.BatchNormalization.call

    def call(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        del training
        return original(layer, inputs, training=False, mask=mask)

    return {"call": call}
