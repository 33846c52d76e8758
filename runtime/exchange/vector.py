"""The float vectors that workers add up: how they lie in memory, and whether they are finite.

A vector begins at a multiple of 64 bytes, so that TensorFlow can use it without a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.recovery.partial import FloatVector

_Array = TypeVar("_Array", bound=npt.NDArray[Any])

ALIGNMENT_BYTES = 64
"""TensorFlow aborts the process when a dlpack buffer begins elsewhere (``IsAligned``)."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of vectors over the world; whole once a vote of all ranks has followed.

    ``is_finite`` is whether this rank's slice of it holds no infinity and no NaN.  Together
    the ranks look at all of it; the vote joins their answers.
    """

    vector: FloatVector
    is_finite: bool


def aligned_vector(size: int) -> FloatVector:
    """Return an uninitialised float32 vector that begins at a multiple of 64 bytes."""
    return aligned_array((size,), np.dtype(np.float32))


def aligned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array that begins at a multiple of 64 bytes; no Python objects."""
    length = math.prod(shape) * dtype.itemsize
    raw = np.empty(length + ALIGNMENT_BYTES, np.uint8)
    start = -address_of(raw) % ALIGNMENT_BYTES
    return raw[start : start + length].view(dtype).reshape(shape)


def aligned_copy(vector: FloatVector) -> FloatVector:
    """Return a copy that begins at a multiple of 64 bytes."""
    copy = aligned_vector(len(vector))
    copy[:] = vector
    return copy


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of the array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address


def is_finite(vector: FloatVector) -> bool:
    """Return whether every float is finite; the sum of their squares may overflow meanwhile."""
    # A finite sum has finite terms, and finite terms may overflow in it.  BLAS is the fastest.
    return math.isfinite(np.dot(vector, vector)) or bool(np.isfinite(vector).all())


def writable_alias(array: _Array) -> _Array:
    """Return the same memory without write protection.

    For readers that refuse protected memory, such as NumPy's ``__dlpack__`` without a
    version.
    """
    alias: _Array = np.asarray(_Unprotected(array))  # type: ignore[assignment]
    return alias


class _Unprotected:
    """Memory of an array as NumPy's array interface describes it, writable."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array  # the alias keeps it alive
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
