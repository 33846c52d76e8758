"""The source of samples: a seam of two methods, and arrays in memory."""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError

Array: TypeAlias = npt.NDArray[np.generic]
SampleIds: TypeAlias = npt.NDArray[np.int64]


@runtime_checkable
class Data(Protocol):
    """Samples that are read by number."""

    def __len__(self) -> int:
        """Return the number of samples; it may not change during a job."""

    def read(self, ids: SampleIds) -> tuple[Array, Array]:
        """Return inputs and targets of these samples, in the order of ``ids``.

        The same ids must give the same bytes on every worker and at any time.
        The arrays may be views; the trainer never writes to them.
        """


class ArrayData:
    """Samples of two arrays, or of anything that ``np.asarray`` takes.

    Memory-mapped arrays stay on disk: only the samples read are loaded.
    """

    def __init__(self, x: npt.ArrayLike, y: npt.ArrayLike) -> None:
        self._x = np.asarray(x)
        self._y = np.asarray(y)
        _check("x", self._x)
        _check("y", self._y)
        if len(self._x) != len(self._y):
            raise ProgramError(
                f"x has {len(self._x)} samples but y has {len(self._y)}: "
                "both need one entry for each sample"
            )

    def __len__(self) -> int:
        return len(self._x)

    def read(self, ids: SampleIds) -> tuple[Array, Array]:
        """Return inputs and targets of these samples; views when the ids are consecutive."""
        rows = _rows(ids, len(self))
        return self._x[rows], self._y[rows]


def _check(name: str, array: Array) -> None:
    if array.ndim == 0 or len(array) == 0:
        raise ProgramError(
            f"{name} has the shape {array.shape} and holds no samples: "
            "give an array with at least one sample along its first axis"
        )
    if array.dtype == object:
        raise ProgramError(
            f"{name} is an array of Python objects: its samples differ in shape or type; "
            "give them all the same shape and a numeric type"
        )


def _rows(ids: SampleIds, samples: int) -> slice | SampleIds:
    """Return a slice for consecutive ids, which NumPy reads without a copy."""
    if len(ids) == 0:
        return slice(0, 0)
    first, last = int(ids[0]), int(ids[-1])
    is_run = last - first == len(ids) - 1 and bool((np.diff(ids) == 1).all())
    # NumPy silently cuts a slice at the end of the data, but ids that are too high must raise.
    return slice(first, last + 1) if is_run and first >= 0 and last < samples else ids
