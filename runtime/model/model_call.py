"""One call of a Keras model that changes nothing, and the microbatches that it is called with.

A microbatch is a flat list of tensors for TensorFlow, and a nest for Keras.  A scope catches all
that the call wants to change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from holdfast.runtime.exchange.memory import ALIGNMENT_BYTES, address_of, writable_alias
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.model_rules import unchanged
from holdfast.runtime.model.random_ops import equal_draws
from holdfast.runtime.model.replica import Microbatch, Nest, leaves, map_leaves, pack, structure_key


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as Keras gets them: nests of tensors."""

    x: Nest
    y: Nest
    weights: Nest

    @staticmethod
    def of(microbatch: Microbatch, tensors: Sequence[Any] | None = None) -> Batch:
        """Return a microbatch as tensors, or the given tensors in the microbatch's structure."""
        flat = iter(flat_tensors(microbatch) if tensors is None else tensors)
        parts = (microbatch.x, microbatch.y, microbatch.weights)
        return Batch(*(pack(part, flat) for part in parts))

    def mapped(self, change: Callable[[Any], Any]) -> Batch:
        """Return the batch with ``change`` of each tensor."""
        parts = (self.x, self.y, self.weights)
        return Batch(*(map_leaves(change, part) for part in parts))

    @property
    def targets(self) -> Nest:
        """The targets, None if there are none."""
        return None if self.is_x_alone else self.y

    @property
    def is_x_alone(self) -> bool:
        """Whether a pipeline gave ``(x,)``, and not x: then ``y`` is ``()``."""
        return isinstance(self.y, tuple) and not self.y

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(leaves(self.x)[0].shape[0])


class FlatGraph:
    """A traced graph, a ``ConcreteFunction``, that is called with flat tensors.

    To call the graph itself takes 0.15 ms more, in which its arguments are bound by name.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._function = graph.inference_fn
        self._captured = tuple(graph.captured_inputs)

    def __call__(self, *tensors: Any) -> Sequence[Any]:
        """Return the flat outputs for tensors of the shapes and dtypes of the trace."""
        found: Sequence[Any] = self._function.call_flat(*tensors, *self._captured)
        return found


def flat_graph(function: Callable[..., Any], *specifications: Any) -> FlatGraph:
    """Trace a function of tensors, which have these shapes and dtypes, into a graph."""
    traced = tf.function(function, autograph=False)
    return FlatGraph(traced.get_concrete_function(*specifications))


def flat_tensors(microbatch: Microbatch) -> list[Any]:
    """Return all arrays of a microbatch as tensors."""
    return [_tensor(array) for array in _arrays(microbatch)]


def flat_specifications(microbatch: Microbatch) -> list[Any]:
    """Return shapes and dtypes of ``flat_tensors``."""
    return [tf.TensorSpec.from_tensor(_tensor(array)) for array in _arrays(microbatch)]


def shape_key(microbatch: Microbatch) -> Hashable:
    """Return structure, shapes and dtypes of a microbatch: two that agree share a graph."""
    return structure_key((microbatch.x, microbatch.y, microbatch.weights))


def _arrays(microbatch: Microbatch) -> list[Any]:
    return leaves((microbatch.x, microbatch.y, microbatch.weights))


def _tensor(array: Any) -> Any:
    """Return the array as a tensor; floats of other widths become float32, as in ``Model.fit``."""
    array = np.asarray(array)
    wide = array.dtype.kind == "f" and array.dtype != np.float32
    if wide:
        return tf.constant(array.astype(np.float32))
    if _is_borrowed(array):  # a copy takes 20 us more in a small step
        lent = array if array.flags.writeable else writable_alias(array)
        return tf.experimental.dlpack.from_dlpack(lent.__dlpack__())
    return tf.constant(array)


def _is_borrowed(array: Any) -> bool:
    """Return whether TensorFlow can use the memory of the array."""
    if not array.nbytes or array.dtype.kind not in "iuf":
        return False
    is_native = array.dtype.isnative and array.flags.c_contiguous
    return bool(is_native) and address_of(array) % ALIGNMENT_BYTES == 0


Starts: TypeAlias = Mapping[int, Any]
"""Values that metric variables have after a reset, by identity of the variable, if not zero."""


def metric_starts(model: Any) -> Starts:
    """Reset the metrics, and return what is not zero then: a setting of a metric, say."""
    model.reset_metrics()
    values = ((id(v), np.asarray(v.value)) for v in model.metrics_variables)
    return {key: value for key, value in values if np.any(value)}


def carried_metrics(model: Any, batch: Batch, *, evaluates: bool = True) -> frozenset[int]:
    """Return, by identity, the metric variables that updates change and that no reset empties."""
    variables = [v for v in model.metrics_variables if v.dtype != "bool"]
    with unchanged(variables):
        model.reset_metrics()
        for variable in variables:
            variable.assign(2 * variable.value + 1)
        marks = [np.asarray(variable.value.read_value()) for variable in variables]
        model.reset_metrics()
        kept = [
            variable
            for variable, mark in zip(variables, marks, strict=True)
            # Also if what it holds is no number, which the mark is not either then.
            if np.all(np.isclose(np.asarray(variable.value), mark, 0.0, 0.0, equal_nan=True))
        ]
    if not kept:
        return frozenset()
    call = ModelCall(model)
    with equal_draws(), call.scope:
        prediction, _ = forward(model, batch, training=False, evaluates=evaluates)
        update_metrics(model, batch, prediction)
    return frozenset(id(variable) for variable in kept if call.has_changed(variable))


def start_of(variable: Any, starts: Starts) -> Any:
    """Return the value with which a microbatch begins to update a metric variable."""
    found = starts.get(id(variable))
    return tf.zeros(variable.shape, variable.dtype) if found is None else tf.constant(found)


class ModelCall:
    """The scope of one call of the model.

    It starts from ``values``, and metrics start from ``starts``, else from zero.
    """

    def __init__(
        self, model: Any, values: Iterable[tuple[Any, Any]] = (), starts: Starts | None = None
    ) -> None:
        trainable = model.trainable_variables
        self.metrics = tuple(model.metrics_variables)
        self.weights = [tf.convert_to_tensor(v.value) for v in trainable]
        mapping = [(v, start_of(v, starts or {})) for v in self.metrics]
        mapping += zip(trainable, self.weights, strict=True)
        mapping += ((v, tf.cast(value, v.dtype)) for v, value in values)
        self.scope = keras.StatelessScope(state_mapping=mapping, collect_losses=True)
        self._before = {id(v): self.value(v) for v, _ in mapping}

    def value(self, variable: Any) -> Any:
        """Return the value that the call gives the variable, None if it does not touch it."""
        return self.scope.get_current_value(variable)

    def has_changed(self, variable: Any) -> bool:
        """Return whether the call gives the variable a new value."""
        return self.value(variable) is not self._before.get(id(variable))


def forward(model: Any, batch: Batch, *, training: bool, evaluates: bool = True) -> tuple[Any, Any]:
    """Return prediction and loss, as ``Model.fit`` computes them.

    In a training that never ``evaluates`` a ``compute_loss`` hears of training only, as in Keras,
    also when the model is tried.
    """
    prediction = model(batch.x, **model_rules.accepted(model.call, training=training))
    # By position, as Keras does: an override may call its arguments by other names.
    loss = model.compute_loss(
        batch.x,
        batch.targets,
        prediction,
        batch.weights,
        **model_rules.accepted(model.compute_loss, training=training or not evaluates),
    )
    return prediction, tf.cast(loss, tf.float32)


def update_metrics(model: Any, batch: Batch, prediction: Any) -> Any:
    """Add a prediction to the model's metrics, as ``Model.fit`` does; return the logs."""
    return model.compute_metrics(
        x=batch.x, y=batch.targets, y_pred=prediction, sample_weight=batch.weights
    )
