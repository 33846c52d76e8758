"""A Keras model whose step is one graph, for a worker that computes whole batches alone.

Theory.  Workers that train together stop between contribution and update: they add up, and
they vote.  A lone worker has nothing to add, and its vote is known from the numbers.  So one
graph computes the sums of a batch and, if all of them are finite, applies them.  No gradient
leaves TensorFlow.  Sums and update are the functions of `KerasReplica`, each kept apart
(`apart`), so the bits are the same.

The contribution holds two marks and the metrics.  The first mark is NaN if a gradient is not
finite, the second one if other state is not; else they are zero.

Invariant: of a contribution that is finite, every effect has happened once `contribute`
returns.  One that is not finite has had none; `apply` gives it effect, if the job takes it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import tensorflow as tf

from holdfast.recovery.partial import FloatVector
from holdfast.runtime.model.keras_replica import KerasReplica
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.model.tensors import flat_graph

_MARKS = 2


class _Effect(IntEnum):
    """When a step changes the model."""

    NEVER = 0
    IF_FINITE = 1
    ALWAYS = 2


class LoneReplica(KerasReplica):
    """A compiled Keras model that nobody else trains; the arguments are those of its base."""

    _last: Microbatch | None = None
    """The batch that the last contribution is of, until that is applied."""
    _has_effect = False

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graph of a step."""
        return (self._first_graph.graph,)

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        """Write marks and metrics over ``batch``; update the model if all is finite."""
        self._last = batch
        out[:] = self._step(batch, _Effect.IF_FINITE)
        self._has_effect = bool(np.isfinite(out).all())

    def prepare(self, batch: Microbatch) -> None:
        """Make and run once the graphs for batches of this shape, without any effect."""
        if batch.kind == self._kind:
            self._step(batch, _Effect.NEVER)
        self.evaluate(batch, np.empty(self._shape.metrics, np.float32))

    def apply(self, total: FloatVector, samples: int) -> None:
        """Give effect to the last contribution, if it has none yet."""
        del total, samples
        last, self._last = self._last, None
        assert last is not None, "a contribution comes before its total"
        if not self._has_effect:
            self._step(last, _Effect.ALWAYS)

    def takes_overflow(self, total: FloatVector) -> bool:
        """Return whether the step can be applied: see `_takes`."""
        return self._takes(total, 1)

    def _make_ready(self) -> int:
        return _MARKS

    def _step(self, batch: Microbatch, effect: _Effect) -> Any:
        (vector,) = self._run(batch, _order(effect, batch.samples), training=True)
        return np.asarray(vector)

    def _trace(self, batch: Microbatch, *, training: bool) -> Any:
        if not training:
            return super()._trace(batch, training=False)

        def step(tensors: Any, seeds: Any, order: Any) -> Any:
            *sums, metrics = self._contribution(batch, training=True)(tensors, seeds)
            return [self._updated(sums, metrics, order)]

        return flat_graph(step, *self._specifications(batch), tf.TensorSpec((2,), tf.float32))

    def _updated(self, sums: Sequence[Any], metrics: Any, order: Any) -> Any:
        """Add the update to the graph of a step; return marks and metrics."""
        sums = [tf.cast(tensor, tf.float32) for tensor in sums]
        graded = len(self._sums.roles.graded)
        vector = tf.concat([[_mark(sums[:graded]), _mark(sums[graded:])], metrics], 0)
        effect, samples = order[0], order[1]
        is_on = tf.logical_and(
            tf.equal(effect, float(_Effect.IF_FINITE)), tf.reduce_all(tf.math.is_finite(vector))
        )
        is_on = tf.logical_or(is_on, tf.equal(effect, float(_Effect.ALWAYS)))
        divisors = tf.stack(self._of_model.divisors(samples, metrics))

        def change() -> Any:
            self._change(sums, divisors)
            return tf.constant(0)

        tf.cond(is_on, change, lambda: tf.constant(0))
        return vector


def _mark(tensors: Sequence[Any]) -> Any:
    """Return 0 if all numbers are finite, else NaN."""
    if not tensors:
        return tf.constant(0.0)
    # A finite sum has finite terms; finite terms may overflow in the sum.
    sums = tf.stack([tf.reduce_sum(tensor) for tensor in tensors])
    are_finite = tf.cond(
        tf.reduce_all(tf.math.is_finite(sums)),
        lambda: tf.constant(True),
        lambda: tf.reduce_all(
            tf.stack([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
        ),
    )
    return tf.where(are_finite, 0.0, np.nan)


@functools.lru_cache(maxsize=16)
def _order(effect: _Effect, samples: int) -> Any:
    """Return the input of a step beside its batch; steps have one or two numbers of samples."""
    return tf.constant([effect, samples], tf.float32)
