"""The replica of a compiled Keras model: by the steps of Keras, or by steps of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from holdfast.runtime.custom.custom_replica import CustomReplica
from holdfast.runtime.errors import JobError
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.keras_replica import KerasReplica
from holdfast.runtime.model.lone_replica import LoneReplica
from holdfast.runtime.model.replica import Microbatch, Replica


def replica_of_keras(
    model: Any,
    first: Microbatch,
    mixing: BatchMixing,
    validated: Callable[[], Microbatch | None] = lambda: None,
    *,
    evaluates: bool = True,
) -> Replica:
    """Return the replica of ``model``; ``first`` is one of the microbatches to train with.

    ``validated`` returns one of those to validate with, None if there are none.  ``evaluates`` is
    whether there may be any.

    Raises:
        ProgramError: the model cannot be trained on several workers, as one sentence tells.
    """
    try:
        return _replica(model, first, mixing, validated, evaluates=evaluates)
    except JobError:
        raise
    except Exception:  # of the script
        if first.batch_samples != 1:
            raise
        # Trials take the sample twice, and the loss may take one only, as the batches have.
        return _replica(model, first, BatchMixing.HARMLESS, validated, evaluates=evaluates)


def _replica(
    model: Any,
    first: Microbatch,
    mixing: BatchMixing,
    validated: Callable[[], Microbatch | None],
    *,
    evaluates: bool,
) -> Replica:
    parts = first.x, first.y, first.weights
    if overrides_steps(model):
        return CustomReplica(model, *parts, mixing=mixing, validated=validated())
    kind = LoneReplica if mixing is BatchMixing.ALONE else KerasReplica
    return kind(model, *parts, mixing=mixing, evaluates=evaluates)


def overrides_steps(model: Any) -> bool:
    """Return whether a Keras model brings its own ``train_step`` or ``test_step``."""
    if not isinstance(model, keras.Model):
        return False
    own = (model.train_step, model.test_step)
    base = (keras.Model.train_step, keras.Model.test_step)
    found = (getattr(step, "__func__", None) for step in own)
    return any(step is not other for step, other in zip(found, base, strict=True))
