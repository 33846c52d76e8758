"""A process of a job with TensorFlow's parameter servers, which bench/peers.py times.

On each host stand a worker and a server, and on the first the coordinator.  Weights and momenta are
on the servers in turn, and the servers update them.  ``fit`` of Keras 3 refuses arrays and plain
datasets under this strategy, so the coordinator has a loop of its own.

Asynchronous: a gradient is applied as soon as it comes.  Synchronous: the workers add theirs up on
the servers, and the sum is applied when all are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Servers:
    """The coordinator's view of a model on the servers."""

    def __init__(self, build: Callable[[], Any], rate: float) -> None:
        """Build the model on the servers.  In a server or a worker: serve until killed."""
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        cluster = resolver.cluster_spec()
        if resolver.task_type in ("worker", "ps"):
            own = {"job_name": resolver.task_type, "task_index": resolver.task_id}
            tf.distribute.Server(cluster, protocol="grpc", **own).join()
        self._workers = cluster.num_tasks("worker")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self._model = build()
        self._rate = rate
        self._weights = [variable._value for variable in self._model.trainable_variables]
        self._momenta, self._sums = self._beside_weights(), self._beside_weights()

    def step_of(
        self, x: Any, y: Any, batch: int, *, synchronous: bool
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what trains each worker on a batch of the data, and what waits for all."""

        def dataset() -> Any:
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).cache().repeat()

        batches = iter(self._coordinator.create_per_worker_dataset(dataset))
        of_worker = tf.function(self._add_own if synchronous else self._apply_own)
        of_sums = tf.function(self._apply_sums)

        def step() -> None:
            for _ in range(self._workers):
                self._coordinator.schedule(of_worker, args=(batches,))
            if synchronous:
                self._coordinator.join()
                of_sums()

        return step, self._coordinator.join

    def _beside_weights(self) -> Sequence[Any]:
        """Return zeros, each on the server of its weight."""
        made = []
        for weight in self._weights:
            with tf.device(weight.device):
                made.append(tf.Variable(tf.zeros(weight.shape)))
        return made

    def _gradients(self, batches: Any) -> Sequence[Any]:
        x, y = next(batches)
        with tf.GradientTape() as tape:
            loss = self._model.loss(y, self._model(x, training=True))
        found: Sequence[Any] = tape.gradient(loss, self._weights)
        return found

    def _apply_own(self, batches: Any) -> None:
        gradients = self._gradients(batches)
        for weight, momentum, gradient in zip(self._weights, self._momenta, gradients, strict=True):
            self._update(weight, momentum, gradient)

    def _add_own(self, batches: Any) -> None:
        for whole, gradient in zip(self._sums, self._gradients(batches), strict=True):
            whole.assign_add(gradient)

    def _apply_sums(self) -> None:
        for weight, momentum, whole in zip(self._weights, self._momenta, self._sums, strict=True):
            with tf.device(weight.device):
                self._update(weight, momentum, whole.value() / self._workers)
                whole.assign(tf.zeros(whole.shape))

    def _update(self, weight: Any, momentum: Any, gradient: Any) -> None:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=weight.handle, accum=momentum.handle, lr=self._rate, grad=gradient, momentum=0.9
        )
