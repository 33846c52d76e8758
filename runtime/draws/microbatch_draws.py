"""Random operations of TensorFlow, drawn from a seed of the microbatch.

``tf.random`` keeps hidden state in its operations, which no worker can hand to another.
While a step or a call of a model is traced, each such operation is replaced by a stateless one.
Its seed is that of the microbatch and the number of the operation.  Draws of ``keras.random``
without a seed are numbered in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from holdfast.runtime.draws.replaced import Functions, replaced
from holdfast.runtime.errors import ProgramError


@dataclass(slots=True)
class Draws:
    """How many operations have drawn."""

    count: int = 0


class _Generator:
    """Stands in for Keras's global seed generator."""

    def __init__(self, next_seed: Callable[[], Any]) -> None:
        self._next_seed = next_seed

    def next(self, ordered: bool = True) -> Any:  # noqa: FBT001, FBT002  # as Keras calls it
        """Return the seed of one draw."""
        del ordered
        return self._next_seed()


@contextmanager
def draws_from(seed: Any) -> Iterator[Draws]:
    """Let operations of ``tf.random`` draw from ``seed``, a tensor of two integers."""
    drawn = Draws()
    outer = _graph()

    def next_seed() -> Any:
        _check_no_loop(outer)
        drawn.count += 1
        return seed + tf.constant([0, drawn.count], seed.dtype)

    with replaced(gen_random_ops, _stateless(next_seed)), unseeded(next_seed):
        yield drawn


@contextmanager
def unseeded(next_seed: Callable[[], Any]) -> Iterator[None]:
    """Let draws of ``keras.random`` without a seed take theirs from ``next_seed``."""
    generator = _Generator(next_seed)
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
