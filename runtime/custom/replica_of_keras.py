"""The replica of a compiled Keras model: by the steps of Keras, or by steps of its own."""

from __future__ import annotations

from typing import Any

import keras

from holdfast.runtime.custom.custom_replica import CustomReplica
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.keras_replica import KerasReplica
from holdfast.runtime.model.lone_replica import LoneReplica
from holdfast.runtime.model.replica import Microbatch, Replica


def replica_of_keras(model: Any, first: Microbatch, mixing: BatchMixing) -> Replica:
    """Return the replica of ``model``; ``first`` is one of the microbatches to train with.

    Raises:
        ProgramError: the model cannot be trained on several workers, as one sentence tells.
    """
    if overrides_steps(model):
        return CustomReplica(model, first.x, first.y, first.weights, mixing=mixing)
    kind = LoneReplica if mixing is BatchMixing.ALONE else KerasReplica
    return kind(model, first.x, first.y, first.weights, mixing=mixing)


def overrides_steps(model: Any) -> bool:
    """Return whether a Keras model brings its own ``train_step`` or ``test_step``."""
    if not isinstance(model, keras.Model):
        return False
    own = (model.train_step, model.test_step)
    base = (keras.Model.train_step, keras.Model.test_step)
    found = (getattr(step, "__func__", None) for step in own)
    return any(step is not other for step, other in zip(found, base, strict=True))
