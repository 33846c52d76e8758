"""The peer of the throughput benchmark: data parallelism on bare mpi4py, without a safety net.

It is written for speed by the rules of TensorFlow: one graph for the gradients, one flat vector,
one allreduce in place, one graph for the update, which reads the sums where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model.graphs import VectorLayout
from holdfast.runtime.model.replica import Array

if TYPE_CHECKING:
    from mpi4py import MPI


class BareReplica:
    """One rank's model; ``step`` trains it on a batch together with all other ranks."""

    def __init__(self, model: Any, comm: MPI.Intracomm) -> None:
        self._model = model
        self._comm = comm
        self._variables = model.trainable_variables
        model.optimizer.build(self._variables)
        self._layout = VectorLayout.of(v.shape for v in self._variables)
        self._flat = aligned_vector(self._layout.size)
        self._flat[:] = 0
        self._gradients = tf.function(self._gradients_of)
        self._update = tf.function(self._apply)
        self._views = [
            tf.experimental.dlpack.from_dlpack(
                self._flat[place.start : place.stop].reshape(place.shape).__dlpack__()
            )
            for place in self._layout.places
        ]

    def step(self, x: Array, y: Array) -> None:
        """Compute, sum up over the ranks, apply."""
        from mpi4py import MPI

        gradients = self._gradients(tf.convert_to_tensor(x), tf.convert_to_tensor(y))
        for place, gradient in zip(self._layout.places, gradients, strict=True):
            self._flat[place.start : place.stop] = np.asarray(gradient).reshape(-1)
        self._comm.Allreduce(MPI.IN_PLACE, self._flat)
        self._update(*self._views)

    def _gradients_of(self, x: Any, y: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = self._model.compute_loss(x, y, self._model(x, training=True))
        gradients = tape.gradient(loss, [v.value for v in self._variables])
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _apply(self, *sums: Any) -> None:
        means = [total / self._comm.size for total in sums]
        self._model.optimizer.apply(means, self._variables)
