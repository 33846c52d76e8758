"""Variables that no model owns, and that callbacks may change: they go on after a relaunch.

An annealed weight of a loss is such a variable, and so is a metric that a callback holds.
They are found in two ways: in the attributes of callbacks, and in the graphs of a step, which
read them beside the variables of the model.

A variable is kept under the name of where it was found.  So a callback may hold another one
in the same place later.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from holdfast.runtime.data.tf_graph import bytes_of
from holdfast.runtime.keras.callback_state import named
from holdfast.runtime.keras.plain_values import INLINE_BYTES, Json

_GRAPHS = "step"

MOST_BYTES = 1 << 20
"""Bytes that are kept in all: workers compare them after each hook of a script's callback."""

_OWNERS = (keras.metrics.Metric, keras.Layer, keras.optimizers.Optimizer, tf.Module)


class HeldVariables:
    """The variables beside those of ``model`` that callbacks hold, or that graphs read.

    Args:
        callbacks: as the user gave them to ``fit``.
        model: the Keras model that is trained; its own variables are left out.
        graphs: the graphs of a step, in an order that is the same in each launch.
    """

    def __init__(self, callbacks: Iterable[Any], model: Any, graphs: Sequence[Any]) -> None:
        self._callbacks = named(callbacks)
        self._model = model
        self._of_graphs = tuple(_read_by(graphs))

    def notes(self) -> dict[str, Json]:
        """Return name, type, shape and bytes of each variable that is kept."""
        kept, _ = self._divided()
        return {name: _encode(variable) for name, variable in kept.items()}

    def restore(self, notes: Mapping[str, Json]) -> None:
        """Assign what ``notes`` has returned; a variable that the script has changed stays."""
        for name, variable in self._found().items():
            if name in notes:
                _assign(variable, notes[name])

    def unkept(self) -> list[str]:
        """Return the attributes that hold more than is kept, each with its size."""
        sizes: Counter[str] = Counter()
        for name, variable in self._divided()[1].items():
            if not name.startswith(f"{_GRAPHS}/"):
                kind, _, attribute = name.partition("/")[0].partition(".")
                sizes[f"{kind.rpartition('-')[0]}.{attribute}"] += bytes_of(variable)
        return [f"{name} ({size} bytes)" for name, size in sizes.items()]

    def unkept_of_graphs(self) -> list[str]:
        """Return the variables that a step reads and that are too large, each with its size."""
        return [
            f"{name.removeprefix(f'{_GRAPHS}/')} ({bytes_of(variable)} bytes)"
            for name, variable in self._divided()[1].items()
            if name.startswith(f"{_GRAPHS}/")
        ]

    def _divided(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the variables that are kept, and those that are too large or too many."""
        kept: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        room = MOST_BYTES
        for name, variable in self._found().items():
            size = bytes_of(variable)
            if size <= min(INLINE_BYTES, room):
                kept[name] = variable
                room -= size
            else:
                rest[name] = variable
        return kept, rest

    def _found(self) -> dict[str, Any]:
        """Return the variables by name, each once."""
        seen = {id(_inner(variable)) for variable in _variables_of(self._model)}
        found: dict[str, Any] = {}
        for name, variable in self._all():
            inner = _inner(variable)
            if id(inner) in seen or inner.dtype in (tf.string, tf.resource, tf.variant):
                continue
            seen.add(id(inner))
            found[name] = inner
        return found

    def _all(self) -> Iterator[tuple[str, Any]]:
        for name, callback in self._callbacks.items():
            for attribute, value in list(vars(callback).items()):
                for number, variable in enumerate(_reached(value)):
                    yield f"{name}.{attribute}/{number}", variable
        yield from self._of_graphs


def encoded(variables: Iterable[Any]) -> list[Json]:
    """Return the values of variables of Keras as JSON, None for one that is too large."""
    inner = [_inner(variable) for variable in variables]
    return [_encode(found) if bytes_of(found) <= INLINE_BYTES else None for found in inner]


def put_back(variables: Iterable[Any], values: Sequence[Json]) -> None:
    """Assign what `encoded` has returned of these variables."""
    for variable, value in zip(variables, values, strict=False):
        if value is not None:
            _assign(_inner(variable), value)


def _variables_of(model: Any) -> Iterator[Any]:
    """Yield the variables of a model, its metrics and its optimizers: the replica keeps them."""
    yield from model.variables
    yield from model.metrics_variables
    for value in list(vars(model).values()):
        if isinstance(value, keras.optimizers.Optimizer):
            yield from value.variables


def _reached(value: Any) -> Iterator[Any]:
    """Yield the variables of a value: itself, those of an object of Keras, or of a container."""
    if isinstance(value, (tf.Variable, keras.Variable)):
        yield value
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _reached(member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from _reached(member)
    elif isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        yield value.state
    elif isinstance(value, _OWNERS):
        yield from value.variables


def _read_by(graphs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables that graphs read, in the order in which they were first read."""
    numbers: Counter[str] = Counter()
    for graph in graphs:
        by_handle = {id(variable.handle): variable for variable in graph.graph.variables}
        for outer, _ in graph.graph.captures:
            variable = by_handle.get(id(outer))
            if variable is None:
                continue
            name = variable.name.partition(":")[0]
            numbers[name] += 1
            again = f"~{numbers[name]}" if numbers[name] > 1 else ""
            yield f"{_GRAPHS}/{name}{again}", variable


def _inner(variable: Any) -> Any:
    """Return the variable of TensorFlow."""
    return variable if isinstance(variable, tf.Variable) else variable._value


def _encode(variable: Any) -> list[Json]:
    data = np.ascontiguousarray(variable.numpy()).tobytes()
    return [variable.dtype.name, list(variable.shape), base64.b64encode(data).decode()]


def _assign(variable: Any, found: Json) -> None:
    """Assign what `_encode` has returned, if the variable still has that type and shape."""
    kind, shape, data = found
    if (variable.dtype.name, list(variable.shape)) == (kind, shape):
        dtype = variable.dtype.as_numpy_dtype
        variable.assign(np.frombuffer(base64.b64decode(data), dtype).reshape(shape))
