"""Whether a vector holds neither an infinity nor a NaN."""

from __future__ import annotations

import math

import numpy as np

from holdfast.runtime.replica import FloatVector


def is_finite(vector: FloatVector) -> bool:
    """Return whether every float is finite; the sum of the vector may overflow meanwhile."""
    # A finite sum has finite terms; finite terms may overflow in the sum.
    return math.isfinite(np.add.reduce(vector)) or bool(np.isfinite(vector).all())
