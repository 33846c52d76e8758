"""The learning rate of an optimizer, scaled while it applies gradients.

The rate that the script has chosen stays what it was: callbacks read and change that one,
and a schedule goes on.  Only an update sees the product.
"""

from __future__ import annotations

from typing import Any

import keras

from holdfast.runtime.options.rate_scale import RateScale

_RATE = "_get_current_learning_rate"


class ScaledRate:
    """Scales the rate of an optimizer from its next update on, until it is taken off."""

    def __init__(self, optimizer: Any, scale: RateScale) -> None:
        # An optimizer of mixed precision hands scaled-back gradients to the one inside.
        self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._scale = scale
        self._begin = int(self._optimizer.iterations.numpy())
        self._apply = self._optimizer.apply
        self._rate = getattr(self._optimizer, _RATE)
        object.__setattr__(self._optimizer, "apply", self._apply_scaled)

    def take_off(self) -> None:
        """Let the optimizer be what it was."""
        vars(self._optimizer).pop("apply", None)

    def _apply_scaled(self, *args: Any, **arguments: Any) -> Any:
        object.__setattr__(self._optimizer, _RATE, self._scaled)
        try:
            return self._apply(*args, **arguments)
        finally:
            vars(self._optimizer).pop(_RATE, None)

    def _scaled(self) -> Any:
        update = keras.ops.cast(self._optimizer.iterations - self._begin, "float32")
        scale = self._scale
        factor = keras.ops.minimum(scale.factor, 1.0 + scale.growth * update)
        return self._rate() * factor
