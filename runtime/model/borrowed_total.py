"""The gradient part of a total as tensors over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from holdfast.recovery.partial import FloatVector
from holdfast.runtime.exchange.vector import (
    ALIGNMENT_BYTES,
    address_of,
    aligned_copy,
    writable_alias,
)
from holdfast.runtime.model.vector_layout import ROW_FLOATS, Place


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


def kept(tensor: Any) -> Any:
    """Return a copy of a tensor of the total: a variable may share the memory that it is given."""
    return tf.raw_ops.DeepCopy(x=tensor)
