"""The place of each tensor in the gradient part of a contribution.

Every tensor begins at a multiple of 64 bytes of the flat vector.  So a view of it can be
handed to TensorFlow through DLPack without a copy.  TensorFlow ends the process if a
buffer has another alignment.  The floats between two tensors are padding and always zero,
so equal tensors make equal vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.runtime.exchange.vector import ALIGNMENT_BYTES

ROW_FLOATS = ALIGNMENT_BYTES // 4
"""The vector is a sequence of whole rows, and tensors begin where a row begins."""


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's floats in the vector: ``[start, stop)``."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """Places of all tensors, and the size in floats of the vector that holds them."""

    places: tuple[Place, ...]
    size: int

    @staticmethod
    def of(shapes: Iterable[tuple[int, ...]]) -> VectorLayout:
        """Return the layout that puts tensors of these shapes one after the other."""
        places = []
        start = 0
        for shape in shapes:
            stop = start + math.prod(shape)
            places.append(Place(start, stop, tuple(shape)))
            start = _aligned(stop)
        return VectorLayout(tuple(places), start)

    def padding(self) -> tuple[slice, ...]:
        """Return the stretches of the vector that belong to no tensor."""
        stops = [place.stop for place in self.places]
        starts = [place.start for place in self.places[1:]] + [self.size] * bool(self.places)
        return tuple(
            slice(stop, start) for stop, start in zip(stops, starts, strict=True) if stop < start
        )


def _aligned(floats: int) -> int:
    """Round up to the next float at which a tensor may begin."""
    return -(-floats // ROW_FLOATS) * ROW_FLOATS
