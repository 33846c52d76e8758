"""The variables that functions of a ``tf.data`` pipeline read, and whether they have changed.

A pass is made from the graph of the dataset, with the values that variables have when ``fit``
begins.  Plain ``fit`` reads them while the batches are made, some batches ahead.  So a variable
that changes meanwhile is refused: its batches would depend on chance there, and be others here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.checkpoint.format.digest import Digest
from holdfast.runtime.errors import ProgramError

_SMALL = 1 << 12
"""Variables of more bytes are compared once a pass; reading them for each batch takes long."""

_STATE_OF_GENERATOR = {(2,), (3,)}
"""Shapes of the states of random generators, which `tf_graph` gives to each pass."""


class ReadVariables:
    """What the variables that ``dataset`` reads are now; none of them may change any more."""

    def __init__(self, dataset: Any) -> None:
        found = {id(variable.handle): variable for variable in _read_by(dataset)}
        self._before = [(variable, _digest(variable)) for variable in found.values()]
        self._small = [at for at in self._before if _bytes_of(at[0]) <= _SMALL]

    def check(self) -> None:
        """Raise ProgramError if any has changed."""
        _compare(self._before)

    def watched(self, elements: Iterator[Any]) -> Iterator[Any]:
        """Return the elements, and compare the small ones before each of them."""
        if not self._small:
            return elements
        return self._watched(elements)

    def _watched(self, elements: Iterator[Any]) -> Iterator[Any]:
        for element in elements:
            _compare(self._small)
            yield element


def _compare(before: list[tuple[Any, str]]) -> None:
    for variable, digest in before:
        if _digest(variable) != digest:
            name = variable.name.partition(":")[0]
            raise ProgramError(
                f"a function of the tf.data.Dataset reads the variable {name!r}, which has changed "
                "since fit() began: read it in the model, or give its values as a part of the data"
            )


def _read_by(dataset: Any) -> Iterator[Any]:
    """Yield the variables that functions of the dataset, and of those it is made of, read."""
    for function in dataset._functions():
        captured = {id(tensor) for tensor in function.function.captured_inputs}
        for variable in function.function.graph.variables:
            if id(variable.handle) in captured and not _is_state_of_generator(variable):
                yield variable
    for source in dataset._inputs():
        yield from _read_by(source)


def _is_state_of_generator(variable: Any) -> bool:
    is_integer: bool = variable.dtype.is_integer
    return is_integer and tuple(variable.shape) in _STATE_OF_GENERATOR


def _bytes_of(variable: Any) -> int:
    return int(np.prod(variable.shape)) * int(variable.dtype.size)


def _digest(variable: Any) -> str:
    state = Digest()
    state.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return state.hexdigest()
