"""Places for the weights that callbacks keep: tensors of fixed shape, also while they are empty.

The layout of a checkpoint must not change during a run.  But a callback such as
``EarlyStopping`` has no best weights at first, and later has some.  So each callback that
may keep weights gets places with the shapes of the model's weights at the start.  A place
that holds nothing is zeros.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.runtime.callbacks.plain_values import Array

_READS_WEIGHTS = frozenset({"get_weights", "get_weight_paths", "trainable_weights", "weights"})


class WeightPlaces:
    """The places of one callback: as many sets of the model's weights as it may keep.

    Args:
        sets: how many sets of weights the callback may keep at one time.
        weights: the model's weights; only shapes and dtypes are looked at.
    """

    def __init__(self, sets: int, weights: Sequence[Array]) -> None:
        self._empty: list[Array] = [np.zeros_like(found) for _ in range(sets) for found in weights]
        self._held = list(self._empty)
        self._free = list(range(len(self._held)))

    def empty(self) -> None:
        """Take everything out of the places."""
        self._held = list(self._empty)
        self._free = list(range(len(self._held)))

    def keep(self, array: Array) -> int | None:
        """Put an array into a free place of its shape; return the number, None without one."""
        for place in self._free:
            if self._held[place].shape == array.shape and self._held[place].dtype == array.dtype:
                self._free.remove(place)
                self._held[place] = array
                return place
        return None

    def tensors(self) -> dict[str, Array]:
        """Return what the places hold, zeros where they hold nothing, by number."""
        return {f"{place:05d}": array for place, array in enumerate(self._held)}

    @staticmethod
    def reader(tensors: Tensors) -> Mapping[int, Array]:
        """Return copies of what ``tensors`` has returned, by number."""
        return {int(name): np.array(array) for name, array in tensors.items()}


def sets_of(callback: Any) -> int:
    """Return how many sets of the model's weights the callback may keep at one time.

    For Keras's own it is known.  In others each place in the code that reads weights counts.
    """
    kinds = [
        kind for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] == "keras"
    ]
    if any(kind.__name__ == "EarlyStopping" for kind in kinds):
        own = 1 if getattr(callback, "restore_best_weights", False) else 0
    else:
        own = 0
    return own + sum(
        _reads(function.__code__)
        for kind in type(callback).__mro__
        if kind.__module__.partition(".")[0] not in {"keras", "builtins"}
        for function in vars(kind).values()
        if hasattr(function, "__code__")
    )


def _reads(code: Any) -> int:
    """Count the instructions, also of inner functions, that read weights of a model."""
    return sum(name in _READS_WEIGHTS for name in _names(code))


def _names(code: Any) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_METHOD", "LOAD_ATTR"}:
            yield str(instruction.argval)
        elif instruction.opname == "LOAD_CONST" and hasattr(instruction.argval, "co_code"):
            yield from _names(instruction.argval)
