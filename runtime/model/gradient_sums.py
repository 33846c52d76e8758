"""Where the sums of gradients lie, from the contribution to the update.

Workers that train together write them into the vector that is added up, and TensorFlow
borrows the total.  A worker that computes whole batches alone adds nothing up.  It keeps
TensorFlow's own tensors, which saves a copy of all gradients in each step.

Both ways hand the same numbers to the same operations, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from holdfast.recovery.partial import FloatVector
from holdfast.runtime.exchange.vector import (
    ALIGNMENT_BYTES,
    address_of,
    aligned_copy,
    is_finite,
    writable_alias,
)
from holdfast.runtime.model.vector_layout import ROW_FLOATS, Place, VectorLayout

Shapes = Sequence[tuple[int, ...]]


class GradientSums(Protocol):
    """Takes the sums of one contribution, and gives them back when its total is applied."""

    @property
    def size(self) -> int:
        """Floats in the contribution, before the metrics."""

    @property
    def specification(self) -> Any:
        """Shapes and dtypes of what `given` returns."""

    def write(self, out: FloatVector, sums: Sequence[Any]) -> None:
        """Take the tensors of a contribution, and write the first ``size`` floats of ``out``."""

    def given(self, total: FloatVector) -> Any:
        """Return the tensors of a total; they are valid as long as the total is."""

    def tensors(self, given: Any) -> Sequence[Any]:
        """Return the tensor of each sum, in their order; called in a graph."""

    def after(self, count: int, total: FloatVector) -> FloatVector:
        """Return floats that are finite if all sums but the first ``count`` and all metrics are."""


class SummedGradients:
    """The sums lie in the contribution, each at the beginning of a row of 64 bytes."""

    def __init__(self, shapes: Shapes) -> None:
        self._layout = VectorLayout.of(shapes)
        self._padding = self._layout.padding()
        self._borrowed = BorrowedTotal(self._layout.size)

    @property
    def size(self) -> int:
        """Floats in the contribution, before the metrics."""
        return self._layout.size

    @property
    def specification(self) -> Any:
        """Shape and dtype of the rows."""
        return self._borrowed.specification

    def write(self, out: FloatVector, sums: Sequence[Any]) -> None:
        """Copy the tensors to their places."""
        for place, tensor in zip(self._layout.places, sums, strict=True):
            out[place.start : place.stop] = np.asarray(tensor).reshape(-1)
        for gap in self._padding:
            out[gap] = 0.0

    def given(self, total: FloatVector) -> Any:
        """Return the rows."""
        return self._borrowed.rows(total)

    def tensors(self, given: Any) -> Sequence[Any]:
        """Return views of the rows."""
        return [tensor_at(given, place) for place in self._layout.places]

    def after(self, count: int, total: FloatVector) -> FloatVector:
        """Return what lies behind."""
        return total[self._layout.places[count - 1].stop :]


class KeptGradients:
    """The sums stay TensorFlow's; the contribution tells whether they are finite.

    Its first float is NaN if one of the first ``graded`` sums is not finite, its second one
    if another sum is not, else they are zero.

    Invariant: the tensors are those of the last contribution, which is applied at most once.
    """

    def __init__(self, shapes: Shapes, graded: int) -> None:
        self._shapes = shapes
        self._graded = graded
        self._kept: Sequence[Any] = ()
        self.size = 2

    @property
    def specification(self) -> Any:
        """Shape and dtype of each tensor."""
        return [tf.TensorSpec(shape, tf.float32) for shape in self._shapes]

    def write(self, out: FloatVector, sums: Sequence[Any]) -> None:
        """Keep the tensors, and tell whether they are finite."""
        self._kept = [tf.cast(tensor, tf.float32) for tensor in sums]
        with np.errstate(over="ignore", invalid="ignore"):
            out[0] = _mark(self._kept[: self._graded])
            out[1] = _mark(self._kept[self._graded :])

    def given(self, total: FloatVector) -> Any:
        """Return the tensors of the last contribution, once."""
        del total
        kept, self._kept = self._kept, ()
        assert kept, "a contribution comes before its total"
        return kept

    def tensors(self, given: Any) -> Sequence[Any]:
        """Return the tensors."""
        tensors: Sequence[Any] = given
        return tensors

    def after(self, count: int, total: FloatVector) -> FloatVector:
        """Return the second mark and the metrics."""
        assert count == self._graded, "nobody asks for other sums"
        return total[1:]


def _mark(tensors: Sequence[Any]) -> float:
    """Return 0 if all numbers are finite, else NaN."""
    return 0.0 if all(is_finite(np.asarray(t).reshape(-1)) for t in tensors) else np.nan


class BorrowedTotal:
    """Hands the first ``size`` floats of totals to TensorFlow, in rows of 64 bytes.

    Totals mostly lie at the same place, so the last tensor is kept.  A total that is not
    aligned is copied.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._last: tuple[FloatVector, Any] = (np.empty(0, np.float32), None)

    @property
    def specification(self) -> Any:
        """Shape and dtype of the rows."""
        return tf.TensorSpec((self._size // ROW_FLOATS, ROW_FLOATS), tf.float32)

    def rows(self, total: FloatVector) -> Any:
        """Return the rows, which are valid as long as the total is."""
        sums = total[: self._size]
        if address_of(sums) % ALIGNMENT_BYTES:
            sums = aligned_copy(sums)
        if address_of(sums) != address_of(self._last[0]):
            rows = writable_alias(sums).reshape(-1, ROW_FLOATS)
            self._last = sums, tf.experimental.dlpack.from_dlpack(rows.__dlpack__())
        return self._last[1]


def tensor_at(rows: Any, place: Place) -> Any:
    """Return a tensor of the flat vector, which TensorFlow gets in rows of 64 bytes.

    A run of whole rows is a view.  A tensor that ends within a row is copied.  Such tensors
    are small: large ones hardly ever have an odd last dimension.
    """
    run = rows[place.start // ROW_FLOATS : -(-place.stop // ROW_FLOATS)]
    if place.stop % ROW_FLOATS:
        run = tf.reshape(run, [-1])[: place.stop - place.start]
    return tf.reshape(run, place.shape)
