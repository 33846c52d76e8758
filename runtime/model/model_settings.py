"""The settings of a model: attributes of its optimizers and layers that their makers were given.

This file looks at a model without importing Keras.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_RATE = "_learning_rate"
"""A variable, or a schedule; a number that is set goes into the variable."""

_NO_SETTINGS = frozenset({"name", "inner_optimizer"})


def settings_of(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield each owner of settings with the name of an attribute."""
    for optimizer in optimizers_of(model):
        yield from ((optimizer, name) for name in sorted({*_configured(optimizer), _RATE}))
    for layer in layers_of(model):
        yield from ((layer, name) for name in sorted({*_configured(layer), "trainable"}))


def _configured(owner: object) -> set[str]:
    """Return the attributes that a layer or an optimizer has under the name of an argument."""
    kind: Any = type(owner)  # mypy takes a class for not hashable
    return set(vars(owner)) & _arguments(kind) - _NO_SETTINGS


@functools.cache
def _arguments(kind: type) -> frozenset[str]:
    """Return the names of all arguments that a class, or one above it, is made with."""
    made = (vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each))
    return frozenset(name for way in made if callable(way) for name in _parameters(way))


def _parameters(way: Callable[..., Any]) -> Iterable[str]:
    with contextlib.suppress(ValueError, TypeError):  # of a class without Python code
        return inspect.signature(way).parameters
    return ()


def layers_of(model: Any) -> list[Any]:
    """Return the layers of a model, and those within them."""
    if not hasattr(model, "_flatten_layers"):
        return []
    return list(model._flatten_layers(include_self=False))


def optimizers_of(model: Any) -> Iterator[Any]:
    """Yield the optimizers that are attributes of a model, and those within them."""
    found = list(vars(model).values())
    while found:
        optimizer = found.pop(0)
        if hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config"):
            yield optimizer
            found += [getattr(optimizer, "inner_optimizer", None)]  # of a loss scale
            found += getattr(optimizer, "optimizers", ())  # of a MultiOptimizer
