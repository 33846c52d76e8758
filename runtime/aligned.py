"""Float vectors that TensorFlow can use without a copy."""

from __future__ import annotations

import numpy as np

from holdfast.runtime.replica import FloatVector

ALIGNMENT_BYTES = 64
"""TensorFlow aborts the process when a dlpack buffer begins elsewhere (``IsAligned``)."""


def aligned_vector(size: int) -> FloatVector:
    """Return an uninitialised float32 vector that begins at a multiple of 64 bytes."""
    spare = ALIGNMENT_BYTES // 4
    raw = np.empty(size + spare, np.float32)
    start = (-raw.ctypes.data % ALIGNMENT_BYTES) // 4
    return raw[start : start + size]
