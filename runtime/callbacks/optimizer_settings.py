"""Settings that the graph of a step holds as constants, watched while callbacks begin.

Keras traces a step when the first one runs.  A replica traces it before, to learn what the
step is made of.  So a setting of an optimizer that ``on_train_begin`` changes, such as
``clipnorm``, or a layer that it freezes, would have effect in Keras and none here.  Numbers
in variables, such as the learning rate, always have.

Watched are what the optimizer's ``get_config`` names; an attribute beside may be its user's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from numbers import Number
from typing import Any

from holdfast.runtime.errors import ProgramError

_RATE = "_learning_rate"
"""A variable, or a schedule; a number that is set goes into the variable."""


class OptimizerSettings:
    """The settings of a model's optimizers and layers, as they were when it was traced."""

    def __init__(self, model: Any) -> None:
        self._traced = [
            (owner, name, getattr(owner, name, None)) for owner, name in _settings(model)
        ]

    def check(self) -> None:
        """Raise ProgramError if one has changed."""
        for owner, name, known in self._traced:
            value = getattr(owner, name, None)
            if not _is_same(value, known):
                what = f"{name.lstrip('_')} of {type(owner).__name__} {owner.name!r}"
                raise ProgramError(
                    f"a callback has set {what} from {known!r} to {value!r} before the first step; "
                    "holdfast has made the graph of a step by then, so it would have no effect; "
                    "set it before fit() is called"
                )


def _settings(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield each owner of settings with the name of an attribute."""
    for optimizer in _optimizers(model):
        names: set[str] = set()
        with contextlib.suppress(Exception):  # code of the script, which nothing else calls here
            names = set(optimizer.get_config())
        kept = names.intersection(vars(optimizer)) - {"name", "inner_optimizer"}
        yield from ((optimizer, name) for name in sorted(kept | {_RATE}))
    for layer in getattr(model, "layers", ()):
        yield layer, "trainable"


def _optimizers(model: Any) -> Iterator[Any]:
    """Yield the optimizers that are attributes of a model, and those within a loss scale."""
    for value in list(vars(model).values()):
        optimizer = value
        while hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config"):
            yield optimizer
            optimizer = getattr(optimizer, "inner_optimizer", None)


def _is_same(value: Any, known: Any) -> bool:
    is_comparable = isinstance(value, Number | str) and isinstance(known, Number | str)
    return value is known or (is_comparable and value == known)
