"""The stored bytes of a tensor, and the share of each writer in the bytes of all tensors.

Stored bytes are little-endian and in C order, for any array in memory.  A dtype has two
names.  The user computes with the *logical* one, and the manifest records it; HDF5 holds
the *storage* one.  They differ only for the types of ``ml_dtypes`` (bfloat16 and its kin),
which HDF5 does not know.  The bits of those are stored as unsigned integers of the same
width.

All tensors, in the order of their names, make one byte space.  It is cut evenly
into one range for each writer, at multiples of 4 KiB rounded down to whole elements.
Invariant: the pieces of all writers tile every tensor exactly.  So each byte of the
state is written exactly once, with any number of writers.

Digests of stored bytes are xxh3_128, that of a whole state is sha256.  xxh3_128 is faster than
memory (measured 27 GB/s on one thread), so every byte can be digested.  It finds accidents, not
attackers: a checkpoint with such digests is only as trustworthy as its directory.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

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

CUT_BYTES = 4096  # a page, and the block of every common file system
_LONGEST_NAME_BYTES = 1024  # an HDF5 attribute must fit an object header of 64 KiB
_MOST_DIMENSIONS = 32  # H5S_MAX_RANK


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


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name, dtype and shape of a tensor; ``dtype`` is a logical numpy name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return storage_dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``start`` to ``stop`` of a flattened tensor, stored by one writer."""

    spec: TensorSpec
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether the piece is the whole tensor."""
        return self.start == 0 and self.stop == self.spec.size

    @property
    def nbytes(self) -> int:
        """Bytes of the piece."""
        return (self.stop - self.start) * self.spec.itemsize


def specs_of(state: Tensors) -> tuple[TensorSpec, ...]:
    """Return the specs of the tensors of ``state``, in the order of their names.

    Raises ``StateUnsupported`` for a tensor that cannot be stored.
    """
    specs = tuple(
        TensorSpec(name, _name_of(state[name].dtype), tuple(map(int, state[name].shape)))
        for name in sorted(state)
    )
    for spec in specs:
        refuse_unsupported(spec)
    return specs


@functools.cache
def _name_of(dtype: np.dtype[np.generic]) -> str:
    """Return a dtype's name from a cache, because NumPy builds it anew each time."""
    return str(dtype.name)


def refuse_unsupported(spec: TensorSpec) -> None:
    """Raise ``StateUnsupported`` unless a tensor like this can be stored."""
    try:
        length = len(spec.name.encode())
    except UnicodeEncodeError as error:
        raise StateUnsupported(
            f"tensor name {spec.name!r} is not valid Unicode; rename the tensor"
        ) from error
    if length > _LONGEST_NAME_BYTES:
        raise StateUnsupported(
            f"tensor name {spec.name[:40]!r}… has {length} bytes; "
            f"rename it to at most {_LONGEST_NAME_BYTES}"
        )
    if len(spec.shape) > _MOST_DIMENSIONS:
        raise StateUnsupported(
            f"tensor {spec.name!r} has {len(spec.shape)} dimensions; "
            f"reshape it to at most {_MOST_DIMENSIONS}"
        )
    try:
        storage_dtype(spec.dtype)
    except StateUnsupported as error:
        raise StateUnsupported(f"tensor {spec.name!r} cannot be stored: {error}") from error


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """How ``writers`` writers, numbered from 0, share the bytes of the tensors."""

    specs: tuple[TensorSpec, ...]
    writers: int

    def __post_init__(self) -> None:
        """Refuse layouts that cannot exist."""
        if self.writers < 1:
            raise ValueError(f"a layout needs at least 1 writer, got {self.writers}")
        names = [spec.name for spec in self.specs]
        if names != sorted(set(names)):
            raise ValueError("tensor names must ascend without repeats; use specs_of")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole state."""
        return sum(spec.nbytes for spec in self.specs)

    def refuse_other(self, state: Tensors) -> None:
        """Raise ``StateUnsupported`` if the tensors of ``state`` differ from the layout's specs."""
        if specs_of(state) != self.specs:
            raise StateUnsupported("the state does not fit the layout; make a layout of its specs")

    def pieces(self, writer: int) -> tuple[Piece, ...]:
        """Return the pieces of ``writer``, in the order of names; empty tensors go to writer 0."""
        if not 0 <= writer < self.writers:
            raise ValueError(f"writer {writer} is not one of {self.writers}")
        return tuple(self._pieces(writer))

    def _cut(self, writer: int) -> int:
        if writer == self.writers:
            return self.nbytes
        return self.nbytes * writer // self.writers // CUT_BYTES * CUT_BYTES

    def _pieces(self, writer: int) -> Iterator[Piece]:
        low, high = self._cut(writer), self._cut(writer + 1)
        base = 0
        for spec in self.specs:
            start = _element(low - base, spec)
            stop = _element(high - base, spec)
            if start < stop or (spec.size == 0 and writer == 0):
                yield Piece(spec, start, stop)
            base += spec.nbytes


def _element(offset: int, spec: TensorSpec) -> int:
    """Return the element at a byte offset from the tensor's start, clipped to the tensor."""
    return min(max(offset, 0) // spec.itemsize, spec.size)


DIGEST_NAME = "xxh3_128"
"""The kind of all digests of stored bytes, as a manifest names it."""

DIGEST_DIGITS = 32
"""Hexadecimal digits of such a digest."""


Digest = xxhash.xxh3_128
"""A running digest; ``update`` releases the GIL for all but tiny buffers."""

digest_of = xxhash.xxh3_128_hexdigest
"""Returns the digest of bytes, in lower-case hexadecimal digits."""


def state_sha256(state: Tensors) -> str:
    """Return the sha256 over name, dtype, shape and bytes of every tensor, in the order of names.

    Two states have the same digest if and only if they restore to the same
    arrays: byte order and strides in memory make no difference.
    """
    digest = hashlib.sha256()
    for spec in specs_of(state):
        digest.update(json.dumps([spec.name, spec.dtype, spec.shape]).encode() + b"\n")
        digest.update(whole_bytes_of(state[spec.name]))
    return digest.hexdigest()
