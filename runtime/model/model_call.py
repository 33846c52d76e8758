"""One call of a Keras model that changes nothing: the scope that catches all changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from holdfast.runtime.draws.equal_draws import equal_draws
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.named_variables import unchanged
from holdfast.runtime.model.tensors import Batch

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
