"""One batch of a pipeline: its place, its arrays, and the digest of all its bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.digest import Digest
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import MOST_PARTS
from holdfast.runtime.model.nest import Nest, leaves, map_leaves, named_leaves

Parts: TypeAlias = tuple[Nest, Nest, Nest]
"""Inputs, targets and sample weights."""

NO_TARGETS: Nest = ()
"""Targets of an element ``(x,)``: a step of the script's own gets it as it is, and not x."""

_LENGTH = struct.Struct("<q")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Batch ``number`` of a pass, from 0; each array of ``parts`` has ``samples`` rows."""

    number: int
    parts: Parts
    samples: int
    digest: int

    def rows(self, start: int, stop: int) -> Parts:
        """Return views of the samples ``start <= sample < stop``."""
        x, y, weights = (map_leaves(lambda leaf: leaf[start:stop], part) for part in self.parts)
        return x, y, weights


def make_batch(number: int, element: Any, convert: Callable[[Any], Any] = np.asarray) -> Batch:
    """Return the batch that ``element`` of a pipeline holds, as ``fit`` reads it.

    Args:
        number: the batch's number in its pass, from 0.
        element: ``(x,)``, ``(x, y)``, ``(x, y, sample_weight)``, or x alone.
        convert: makes an array of a leaf.

    Raises:
        ProgramError: the element is no batch; the message names the array.
    """
    parts = tuple(map_leaves(convert, part) for part in _split(number, element))
    samples = _samples_of(number, parts)
    x, y, weights = parts
    return Batch(number, (x, y, weights), samples, digest_of(parts))


def digest_of(parts: tuple[Nest, ...]) -> int:
    """Return 64 bits of the digest over name, dtype, shape and bytes of every array."""
    state = Digest()
    for name, array in zip(("x", "y", "sample_weight"), parts, strict=True):
        for path, leaf in named_leaves(array, name):
            state.update(f"{path} {leaf.dtype.str} {leaf.shape}".encode())
            for piece in bytes_of(leaf):
                state.update(piece)
    return int(state.hexdigest()[:16], 16)


def bytes_of(leaf: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Return the bytes of an array; strings of any length as lengths and contents."""
    if leaf.dtype != object:
        return (np.ascontiguousarray(leaf).reshape(-1).view(np.uint8),)
    texts = [bytes(text) for text in leaf.reshape(-1)]
    return b"".join(_LENGTH.pack(len(text)) for text in texts), b"".join(texts)


def _split(number: int, element: Any) -> tuple[Any, Any, Any]:
    """Return the three parts of an element; a list of parts is a tuple, as in Keras."""
    parts = tuple(element) if isinstance(element, (list, tuple)) else (element,)
    if not 1 <= len(parts) <= MOST_PARTS:
        raise ProgramError(
            f"batch {number + 1} of the pipeline has {len(parts)} parts: give (x,), (x, y) or "
            "(x, y, sample_weight); several inputs belong into one tuple or dict, x"
        )
    if len(parts) == 1 and isinstance(element, (list, tuple)):
        return parts[0], NO_TARGETS, None
    x, y, weights = (*parts, None, None)[:MOST_PARTS]
    return x, y, weights


def _samples_of(number: int, parts: tuple[Nest, ...]) -> int:
    named = [
        found
        for name, part in zip(("x", "y", "sample_weight"), parts, strict=True)
        for found in named_leaves(part, name)
    ]
    sizes = {path: leaf.shape[0] if leaf.ndim else None for path, leaf in named}
    if not leaves(parts[0]) or len(set(sizes.values())) != 1 or None in sizes.values():
        shapes = ", ".join(f"{path} {leaf.shape}" for path, leaf in named) or "nothing"
        raise ProgramError(
            f"batch {number + 1} of the pipeline holds {shapes}: all of its arrays need the same "
            "first axis, one entry for each sample; call .batch(...) on a tf.data.Dataset of "
            "single samples"
        )
    samples = next(iter(sizes.values()))
    if not samples:
        raise ProgramError(f"batch {number + 1} of the pipeline has no samples: leave it out")
    return int(samples)
