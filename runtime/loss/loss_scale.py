"""The scale of a loss whose gradients are computed in float16.

Small gradients vanish in float16.  So Keras multiplies the loss by a scale, and divides the
gradients again.  A scale that is too large makes them overflow.  Then the optimizer skips the
step and halves its scale.  The scale and its counter are variables of the optimizer, so they
are part of the state.

A replica wants gradients times samples.  With a dynamic scale they are multiplied after the
backward pass, in float32.  Otherwise a large microbatch would overflow where Keras does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from holdfast.recovery.partial import FloatVector

LEAST_SCALE = 2.0**-24
"""The least number of float16: a smaller scale cannot be what the gradients need."""


class LossScale:
    """How a model's optimizer scales the loss."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def is_dynamic(self) -> bool:
        """Whether the optimizer skips steps whose gradients overflow."""
        return hasattr(self._optimizer, "dynamic_growth_steps")

    def factor(self) -> Any:
        """Return what the optimizer multiplies a loss by."""
        return self._optimizer.scale_loss(tf.constant(1.0))

    def takes_overflow(self, others: FloatVector) -> bool:
        """Return whether the optimizer skips a step whose gradients are not finite.

        ``others`` is all of the total but the gradients.  If it is not finite either, the cause
        is not the scale.  Nor is it a scale that has been halved very often already.
        """
        if not (self.is_dynamic and np.isfinite(others).all()):
            return False
        return float(np.asarray(self._optimizer.dynamic_scale.value)) >= LEAST_SCALE
