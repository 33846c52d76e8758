"""The float vectors that workers add up: how they lie in memory, and whether they are finite.

A vector begins at a multiple of 64 bytes, so that TensorFlow can use it without a copy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.recovery.partial import FloatVector

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
    spare = ALIGNMENT_BYTES // 4
    raw = np.empty(size + spare, np.float32)
    start = (-address_of(raw) % ALIGNMENT_BYTES) // 4
    return raw[start : start + size]


def aligned_copy(vector: FloatVector) -> FloatVector:
    """Return a copy that begins at a multiple of 64 bytes."""
    copy = aligned_vector(len(vector))
    copy[:] = vector
    return copy


def address_of(vector: FloatVector) -> int:
    """Return the address of the vector's first byte."""
    address: int = vector.__array_interface__["data"][0]
    return address


def is_finite(vector: FloatVector) -> bool:
    """Return whether every float is finite; the sum of the vector may overflow meanwhile."""
    # A finite sum has finite terms; finite terms may overflow in the sum.
    return math.isfinite(np.add.reduce(vector)) or bool(np.isfinite(vector).all())


def writable_alias(vector: FloatVector) -> FloatVector:
    """Return the same memory without write protection; the result does not keep it alive.

    For readers that refuse protected memory, such as NumPy's ``__dlpack__`` without a
    version.
    """
    return np.asarray(_Unprotected(vector))


class _Unprotected:
    """Memory of a vector as NumPy's array interface describes it, writable."""

    def __init__(self, vector: FloatVector) -> None:
        interface = vector.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
