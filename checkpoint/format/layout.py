"""The share of each writer: the elements of each tensor that it stores.

All tensors, in the order of their names, make one byte space.  It is cut evenly
into one range for each writer, at multiples of 4 KiB rounded down to whole elements.
Invariant: the pieces of all writers tile every tensor exactly.  So each byte of the
state is written exactly once, with any number of writers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.format.tensor import Tensors, storage_dtype

CUT_BYTES = 4096  # a page, and the block of every common file system
LONGEST_NAME_BYTES = 1024  # an HDF5 attribute must fit an object header of 64 KiB
MOST_DIMENSIONS = 32  # H5S_MAX_RANK


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


@functools.cache
def _name_of(dtype: np.dtype[np.generic]) -> str:
    """Return a dtype's name from a cache, because NumPy builds it anew each time."""
    return str(dtype.name)


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


def refuse_unsupported(spec: TensorSpec) -> None:
    """Raise ``StateUnsupported`` unless a tensor like this can be stored."""
    try:
        length = len(spec.name.encode())
    except UnicodeEncodeError as error:
        raise StateUnsupported(
            f"tensor name {spec.name!r} is not valid Unicode; rename the tensor"
        ) from error
    if length > LONGEST_NAME_BYTES:
        raise StateUnsupported(
            f"tensor name {spec.name[:40]!r}… has {length} bytes; "
            f"rename it to at most {LONGEST_NAME_BYTES}"
        )
    if len(spec.shape) > MOST_DIMENSIONS:
        raise StateUnsupported(
            f"tensor {spec.name!r} has {len(spec.shape)} dimensions; "
            f"reshape it to at most {MOST_DIMENSIONS}"
        )
    try:
        storage_dtype(spec.dtype)
    except StateUnsupported as error:
        raise StateUnsupported(f"tensor {spec.name!r} cannot be stored: {error}") from error
