"""One call of a Keras model that changes nothing: the scope that catches all changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from holdfast.runtime.model import model_rules
from holdfast.runtime.model.tensors import Batch


class ModelCall:
    """The scope of one call of the model: it starts from ``values``, and metrics from zero."""

    def __init__(self, model: Any, values: Iterable[tuple[Any, Any]] = ()) -> None:
        trainable = model.trainable_variables
        self.metrics = tuple(model.metrics_variables)
        self.weights = [tf.convert_to_tensor(v.value) for v in trainable]
        mapping = [(v, tf.zeros(v.shape, v.dtype)) for v in self.metrics]
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


def forward(model: Any, batch: Batch, *, training: bool) -> tuple[Any, Any]:
    """Return prediction and loss, as ``Model.fit`` computes them."""
    prediction = model(batch.x, **model_rules.accepted(model.call, training=training))
    # By position, as Keras does: an override may call its arguments by other names.
    loss = model.compute_loss(
        batch.x,
        batch.targets,
        prediction,
        batch.weights,
        **model_rules.accepted(model.compute_loss, training=training),
    )
    return prediction, tf.cast(loss, tf.float32)


def update_metrics(model: Any, batch: Batch, prediction: Any) -> None:
    """Add a prediction to the model's metrics, as ``Model.fit`` does."""
    model.compute_metrics(
        x=batch.x, y=batch.targets, y_pred=prediction, sample_weight=batch.weights
    )
