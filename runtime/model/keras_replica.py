"""A Keras model as an exact replica: the one file that imports TensorFlow.

One graph for each shape of microbatch makes a contribution.  It calls the model inside a
``keras.StatelessScope``, so the call changes nothing.  The changes that the call wanted to
make are read from the scope instead:

* gradients of the loss times the samples, so that sums over microbatches
  divided by all samples are the gradient of the mean loss;
* float32 state that the call changes (moving statistics of BatchNormalization):
  the new value times the samples, so that the mean is weighted by samples;
* states of seed generators: set from the microbatch's seed, then forgotten;
* metric variables: updated from zero, so that they are sums.

A second graph divides the total by its samples, lets the optimizer apply the
gradients and assigns the moving statistics.  Tensors leave and enter as views.  Outputs
are copied once, into the contribution.  The total is handed back through DLPack, which
needs every tensor to begin at a multiple of 64 bytes.

Invariant: between two calls of ``apply``, ``load`` or ``finish`` no variable changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.order import generator_seeds
from holdfast.recovery.partial import FloatVector
from holdfast.runtime.exchange.vector import aligned_vector
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.borrowed_total import BorrowedTotal, tensor_at
from holdfast.runtime.model.loss_scale import LossScale
from holdfast.runtime.model.model_call import ModelCall, forward, update_metrics
from holdfast.runtime.model.named_variables import check_tensors, model_variables
from holdfast.runtime.model.nest import Nest
from holdfast.runtime.model.replica import ContributionShape, Microbatch
from holdfast.runtime.model.tensors import (
    Batch,
    first_sample,
    flat_specifications,
    flat_tensors,
    shape_key,
)
from holdfast.runtime.model.vector_layout import VectorLayout


@dataclass(frozen=True, slots=True)
class _Roles:
    """The variables that a step touches, by the part that they play."""

    graded: tuple[Any, ...]
    """Trainable variables that the loss depends on."""
    moving: tuple[Any, ...]
    """State that a training call changes and that is averaged over samples."""
    metrics: tuple[Any, ...]
    """Metric variables that an update changes."""

    def paths(self) -> list[str]:
        """Return the paths, which can be compared; variables would compare by elements."""
        return [v.path for v in self.graded + self.moving + self.metrics]


class KerasReplica:
    """A compiled Keras model that computes contributions and applies totals.

    ``x``, ``y`` and ``weights`` are those of a microbatch, with at least one sample.  A model
    that is not built yet is built with them.  If they have the shape of the job's
    microbatches, the graph is ready before the first step.
    """

    def __init__(self, model: Any, x: Nest, y: Nest, weights: Nest = None) -> None:
        model_rules.check_backend(keras.backend.backend())
        model_rules.check_model(model, keras.Model)
        self._model = model
        self._graphs: dict[tuple[object, ...], Any] = {}
        self._roles: _Roles | None = None
        first = Microbatch(x, y, 0, weights)
        one = Batch.of(first_sample(first))
        _build(model, one)
        self._trainable = tuple(model.trainable_variables)
        model_rules.check_trainable(self._trainable)
        if not model.optimizer.built:
            model.optimizer.build(self._trainable)
        state = tuple(model.non_trainable_variables)
        self._seeds = tuple(v for v in state if model_rules.is_generator_state(v))
        self._state = tuple(v for v in state if not model_rules.is_generator_state(v))
        self._no_seeds = tf.zeros((0, 2), tf.int64)
        self._scale = LossScale(model.optimizer)
        self._tensors = model_variables(model)
        self._graph(first, training=True)
        _check_metrics(model, self._found.metrics, one)
        self._layout = VectorLayout.of(v.shape for v in self._found.graded + self._found.moving)
        self._graded = len(self._found.graded)
        self._padding = self._layout.padding()
        metrics = 1 + sum(math.prod(v.shape) for v in self._found.metrics)
        self._shape = ContributionShape(gradient=self._layout.size, metrics=metrics)
        self._borrowed = BorrowedTotal(self._layout.size)
        self._update = self._trace_update()

    @property
    def model(self) -> Any:
        """The Keras model itself; treat it as read-only."""
        return self._model

    @property
    def shape(self) -> ContributionShape:
        """Sizes of a contribution."""
        return self._shape

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of gradients, moving statistics and metrics over ``batch``."""
        *tensors, metrics = self._run(batch, training=True)
        for place, tensor in zip(self._layout.places, tensors, strict=True):
            out[place.start : place.stop] = np.asarray(tensor).reshape(-1)
        for gap in self._padding:
            out[gap] = 0.0
        out[self._layout.size :] = np.asarray(metrics)

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the metrics over validation samples."""
        (metrics,) = self._run(batch, training=False)
        out[:] = np.asarray(metrics)

    def prepare(self, batch: Microbatch) -> None:
        """Make and run once the graphs for microbatches of this shape, without any effect.

        Other graphs are made at their first use.  That may be in the middle of a recovery,
        if the worker has adopted a microbatch of another shape.
        """
        scratch = aligned_vector(self._shape.total)
        self.contribute(batch, scratch)
        self.evaluate(batch, scratch[: self._shape.metrics])

    def apply(self, total: FloatVector, samples: int) -> None:
        """Update weights, optimizer and moving statistics from the total."""
        self._update(_constant(samples), self._borrowed.rows(total))

    def takes_overflow(self, total: FloatVector) -> bool:
        """Return whether only gradients are not finite, and the optimizer skips such a step."""
        return self._scale.takes_overflow(total[self._layout.places[self._graded - 1].stop :])

    def finish(self) -> None:
        """Replace the weights by their averages if the optimizer averages them, as fit does."""
        self._model.optimizer.finalize_variable_values(self._model.trainable_variables)

    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        """Return the loss and the results of the model's metrics.

        A metric with several values is returned as ``name/0``, ``name/1`` and so on.
        """
        start = 1
        for variable in self._found.metrics:
            stop = start + math.prod(variable.shape)
            variable.assign(tf.cast(sums[start:stop].reshape(variable.shape), variable.dtype))
            start = stop
        found = self._model.get_metrics_result()
        self._model.reset_metrics()
        found["loss"] = float(sums[0]) / samples
        return {name: value for key in found for name, value in _scalars(key, found[key])}

    def state(self) -> Tensors:
        """Return views of all tensors, which are read-only and keep their values.

        TensorFlow does not write into a buffer that is referenced elsewhere, so the arrays
        are a snapshot.  It costs memory only after the next update.
        """
        return {
            name: np.asarray(variable.value.read_value())
            for name, variable in self._tensors.items()
        }

    def load(self, state: Tensors) -> None:
        """Replace the whole state, or raise ProgramError and change nothing."""
        check_tensors(self._tensors, state)
        for name, variable in self._tensors.items():
            variable.value.assign(tf.convert_to_tensor(state[name]))

    @property
    def _found(self) -> _Roles:
        assert self._roles is not None, "the first graph is traced at construction"
        return self._roles

    def _run(self, batch: Microbatch, *, training: bool) -> Sequence[Any]:
        """Run the graph of the batch's shape and return its outputs."""
        graph = self._graph(batch, training=training)
        seeds = self._no_seeds
        if self._seeds:
            seeds = tf.constant(generator_seeds(batch.seed, len(self._seeds)), tf.int64)
        outputs: Sequence[Any] = graph(flat_tensors(batch), seeds)
        return outputs

    def _graph(self, batch: Microbatch, *, training: bool) -> Any:
        """Return the graph for microbatches of this shape, traced at its first use.

        Shapes are fixed in the graph, because TensorFlow's bits may depend on them.  So the
        bits do not depend on the shapes of a worker's earlier microbatches.
        """
        key = (training, shape_key(batch))
        if key not in self._graphs:
            sums = self._training_sums if training else self._validation_sums
            call = tf.function(
                lambda tensors, seeds: sums(Batch.of(batch, tensors), seeds), autograph=False
            )
            graph = call.get_concrete_function(
                flat_specifications(batch),
                tf.TensorSpec((len(self._seeds), 2), tf.int64),
            )
            model_rules.check_operations(graph.graph.as_graph_def())
            self._graphs[key] = graph
        return self._graphs[key]

    def _training_sums(self, batch: Batch, seeds: Any) -> list[Any]:
        """Build the graph of a contribution: gradients, moving statistics, metrics."""
        model, samples = self._model, float(batch.samples)
        call = ModelCall(model, self._seeded(seeds))
        with tf.GradientTape() as tape:
            tape.watch(call.weights)
            with call.scope:
                prediction, loss = forward(model, batch, training=True)
                objective = self._scale.objective(loss * samples, samples)
        with call.scope:
            update_metrics(model, batch, prediction)
        gradients = tape.gradient(objective, call.weights)
        self._note_roles(call, gradients)
        found = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        moving = [call.value(v) * samples for v in self._found.moving]
        return [*self._scale.sums(found, samples), *moving, self._metric_sums(call, loss * samples)]

    def _validation_sums(self, batch: Batch, seeds: Any) -> list[Any]:
        """Build the graph of a validation batch: metrics only."""
        call = ModelCall(self._model, self._seeded(seeds))
        with call.scope:
            prediction, loss = forward(self._model, batch, training=False)
            update_metrics(self._model, batch, prediction)
        return [self._metric_sums(call, loss * float(batch.samples))]

    def _seeded(self, seeds: Any) -> Iterator[tuple[Any, Any]]:
        return ((v, seeds[i]) for i, v in enumerate(self._seeds))

    def _note_roles(self, call: ModelCall, gradients: Sequence[Any]) -> None:
        """Learn from the first trace which variables take part; all later traces must agree."""
        known = {id(v) for v in self._trainable + self._state + self._seeds + call.metrics}
        model_rules.check_strangers(len(call.scope.state_mapping.keys() - known))
        moving = tuple(filter(call.has_changed, self._trainable + self._state))
        for variable in moving:
            model_rules.check_state_change(variable)
        pairs = zip(self._trainable, gradients, strict=True)
        graded = tuple(v for v, gradient in pairs if gradient is not None)
        model_rules.check_gradients(graded)
        roles = _Roles(graded, moving, tuple(filter(call.has_changed, call.metrics)))
        first = self._roles or roles
        assert first.paths() == roles.paths(), "what a call changes depends on the batch's shape"
        self._roles = roles

    def _metric_sums(self, call: ModelCall, loss: Any) -> Any:
        sums = [tf.reshape(call.value(v), [-1]) for v in self._found.metrics]
        return tf.concat([tf.reshape(loss, [1]), *(tf.cast(s, tf.float32) for s in sums)], 0)

    def _trace_update(self) -> Any:
        """Build the graph that divides the sums by the samples and updates everything."""
        graded, moving = self._found.graded, self._found.moving

        def update(samples: Any, sums: Any) -> None:
            means = [tensor_at(sums, place) / samples for place in self._layout.places]
            self._model.optimizer.apply(means[: len(graded)], list(graded))
            for variable, mean in zip(moving, means[len(graded) :], strict=True):
                variable.assign(mean)

        return tf.function(update, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.float32),
            self._borrowed.specification,
        )


def _build(model: Any, batch: Batch) -> None:
    """Create all variables of model, loss and metrics by one call without training."""
    prediction, _ = forward(model, batch, training=False)
    update_metrics(model, batch, prediction)
    model.reset_metrics()


def _check_metrics(model: Any, metrics: Sequence[Any], batch: Batch) -> None:
    """Refuse metrics that are not sums: an update must add the same to every earlier value."""
    bases = [2 + np.arange(math.prod(v.shape)).reshape(v.shape) % 5 for v in metrics]
    from_zero = _updated_metrics(model, metrics, (), batch)
    from_base = _updated_metrics(model, metrics, zip(metrics, bases, strict=True), batch)
    for i, variable in enumerate(metrics):
        starts_at_zero = not np.any(np.asarray(variable.value))
        is_sum = np.allclose(from_base[i], bases[i] + from_zero[i], rtol=1e-5, equal_nan=True)
        model_rules.check_metric(variable, is_sum=starts_at_zero and bool(is_sum))


def _updated_metrics(
    model: Any, metrics: Iterable[Any], values: Iterable[tuple[Any, Any]], batch: Batch
) -> list[npt.NDArray[np.float32]]:
    """Return the metric variables after an update that starts from ``values``."""
    call = ModelCall(model, values)
    with call.scope:
        prediction, _ = forward(model, batch, training=False)
        update_metrics(model, batch, prediction)
    return [np.asarray(tf.cast(call.value(v), tf.float32)) for v in metrics]


@functools.lru_cache(maxsize=8)
def _constant(samples: int) -> Any:
    """Return a number of samples as a tensor; steps have one or two of them."""
    return tf.constant(samples, tf.float32)


def _scalars(name: str, value: Any) -> Iterable[tuple[str, float]]:
    """Yield the numbers of a metric's result."""
    values = np.asarray(value, dtype=np.float64)
    for i, number in enumerate(values.reshape(-1).tolist()):
        yield f"{name}/{i}" if values.ndim else name, number
