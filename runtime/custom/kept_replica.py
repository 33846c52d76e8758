"""The replica of a model, kept for the next ``fit`` of the same model.

Many scripts call ``fit`` in a loop, an epoch at a time.  The graphs of a replica may take
half a minute to trace.  So they are kept as long as Keras keeps its own: until the model is
compiled again, or has other variables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from holdfast.runtime.custom.replica_of_keras import replica_of_keras
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.keras_replica import KerasReplica
from holdfast.runtime.model.replica import Microbatch, Replica
from holdfast.runtime.model.tensors import first_samples, shape_key

_RATE, _OF_COMPILE = 2, 3
"""In the parts of a replica: the learning rate, and how many stand before the variables."""

_PLACE = "_holdfast_kept_replica"
"""The attribute of the model: so a model and its replica are forgotten together."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A replica, and what its graphs were made of."""

    replica: Replica
    parts: tuple[Any, ...]
    shapes: tuple[Any, ...]

    def is_for(self, parts: tuple[Any, ...], shapes: tuple[Any, ...]) -> bool:
        """Return whether graphs of these objects and shapes would be the same."""
        return (
            len(parts) == len(self.parts)
            and all(one is other for one, other in zip(self.parts, parts, strict=True))
            and shapes == self.shapes
        )


def kept_replica(
    model: Any,
    first: Microbatch,
    mixing: BatchMixing,
    tell: Callable[[str], None],
    validated: Callable[[], Microbatch | None] = lambda: None,
    *,
    evaluates: bool = True,
) -> Replica:
    """Return the replica of ``model``: that of the ``fit`` before, if nothing has changed.

    ``tell`` says what has changed since the model was compiled: Keras would keep its graphs.

    Raises:
        ProgramError: the model cannot be trained on several workers, as one sentence tells.
    """
    kept = getattr(model, _PLACE, None)
    own_loss = getattr(model.compute_loss, "__func__", None) is not keras.Model.compute_loss
    evaluates = evaluates or not own_loss  # Keras's own is alike in training and validation
    shapes = (*_shapes(first, mixing), evaluates)
    if kept is not None and kept.is_for(_parts(model), shapes):
        replica: Replica = kept.replica
        return replica
    changed = None if kept is None else _changed_since_compile(kept.parts, _parts(model))
    if changed is not None:
        tell(
            f"{changed} of {model.name!r} has changed since compile(): that takes effect here; in "
            "plain Keras it does so only after the next compile()"
        )
    made = replica_of_keras(model, first, mixing, validated, evaluates=evaluates)
    if isinstance(made, KerasReplica):  # another one has a state of its own
        object.__setattr__(model, _PLACE, _Kept(made, _parts(model), shapes))
    return made


def _changed_since_compile(before: tuple[Any, ...], now: tuple[Any, ...]) -> str | None:
    """Return what else the graphs of one compiled model are made of now, None for nothing."""
    if len(before) < _OF_COMPILE or before[0] is not now[0]:
        return None
    if before[_RATE] is not now[_RATE]:
        return "the schedule of the learning rate"
    seen, known = ([id(part) for part in parts[_OF_COMPILE:]] for parts in (before, now))
    return "what is trainable" if seen != known and set(seen) == set(known) else None


def _parts(model: Any) -> tuple[Any, ...]:
    """Return the objects that the graphs refer to; ``compile`` makes the first one anew."""
    if not isinstance(model, keras.Model) or not model.compiled:
        return (object(),)
    optimizer = model.optimizer
    return (
        model._compile_config,
        optimizer,
        getattr(optimizer, "_learning_rate", None),
        *optimizer.variables,
        *model.variables,
        *model.trainable_variables,
    )


def _shapes(first: Microbatch, mixing: BatchMixing) -> tuple[Any, ...]:
    """Return structure, shapes and types of one sample; microbatches may have other sizes."""
    return (mixing, shape_key(first_samples(first)))
