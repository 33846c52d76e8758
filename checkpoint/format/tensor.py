"""The stored bytes of a tensor: little-endian, in C order, for any array in memory.

A dtype has two names.  The user computes with the *logical* one, and the manifest
records it; HDF5 holds the *storage* one.  They differ only for the types of
``ml_dtypes`` (bfloat16 and its kin), which HDF5 does not know.  The bits of those are
stored as unsigned integers of the same width.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.errors import StateUnsupported

Tensor: TypeAlias = npt.NDArray[np.generic]
Tensors: TypeAlias = Mapping[str, Tensor]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_PLAIN = ("bool", *_INTEGERS, "float16", "float32", "float64")
_EXTENDED = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
}
_HUGE_PAGE_BYTES = 2**21
_HUGE_FROM_BYTES = 2**22  # where numpy begins to ask for them

DTYPES: tuple[str, ...] = (*_PLAIN, *_EXTENDED)


# Cached: a save asks several times a tensor while training waits, and numpy takes microseconds.
@functools.cache
def storage_dtype(name: str) -> np.dtype[np.generic]:
    """Return the little-endian dtype that holds the bits of the logical dtype ``name``.

    Raises ``StateUnsupported`` for a dtype that cannot be stored.
    """
    if name not in DTYPES:
        raise StateUnsupported(f"dtype {name} cannot be stored; use one of {', '.join(DTYPES)}")
    dtype: np.dtype[np.generic] = np.dtype(_EXTENDED.get(name, name)).newbyteorder("<")
    return dtype


def logical_dtype(name: str) -> np.dtype[np.generic]:
    """Return the dtype that the user sees.

    Raises ``StateUnsupported`` for an unknown dtype, or if the dtype needs the package
    ``ml_dtypes`` and that is not installed.
    """
    if name not in _EXTENDED:
        return storage_dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise StateUnsupported(f"dtype {name} needs the package ml_dtypes; install it") from error
    dtype: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def empty_tensor(dtype: str, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised array of the logical ``dtype``; a large one begins at a huge page.

    numpy asks for huge pages from 4 MiB on.  If an array begins at any address, only its
    middle can have huge pages: half of an array of 4 MiB.  The rest costs a page fault
    each 4 KiB.
    """
    storage, logical = storage_dtype(dtype), logical_dtype(dtype)
    size_bytes = math.prod(shape) * storage.itemsize
    if size_bytes < _HUGE_FROM_BYTES:
        return np.empty(tuple(shape), storage).view(logical)
    space = np.empty(size_bytes + _HUGE_PAGE_BYTES, np.uint8)
    start = -space.ctypes.data % _HUGE_PAGE_BYTES
    return space[start : start + size_bytes].view(logical).reshape(tuple(shape))


def bytes_of(tensor: Tensor, start: int, stop: int) -> memoryview:
    """Return the stored bytes of elements ``start`` to ``stop`` of the flattened tensor.

    The result aliases a C-contiguous little-endian array, and may not outlive its
    contents.  Of any other array it is a copy of the rows that hold these elements.
    """
    if start == stop:
        return memoryview(b"")
    table = tensor if tensor.ndim else tensor.reshape(1)
    row = table.size // table.shape[0]
    first = start // row
    rows = _plain(table[first : -(-stop // row)])
    return rows.reshape(-1)[start - first * row : stop - first * row].view(np.uint8).data


def whole_bytes_of(tensor: Tensor) -> memoryview:
    """Return all stored bytes of a tensor; aliases it where ``bytes_of`` would."""
    return bytes_of(tensor, 0, tensor.size)


def _plain(tensor: Tensor) -> Tensor:
    """Return the tensor C-contiguous and little-endian, copied only if it is not already."""
    contiguous = np.ascontiguousarray(tensor)
    order = contiguous.dtype.byteorder
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        return contiguous.astype(contiguous.dtype.newbyteorder("<"))
    return contiguous
