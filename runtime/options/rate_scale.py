"""How the learning rate of a training grows with its batch (``--scale-lr``).

An update over K times the samples should move as far as K updates did, so the rate is multiplied
by K (Goyal et al. 2017), or by the root of K where the noise of the gradient decides (Hoffer et
al. 2017).  At the start of a training the weights change fast, and such a rate diverges.  So
`RateScale` lets the factor grow from 1 in equal parts, over the first five epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RULES = ("linear", "sqrt")
"""How the learning rate grows with the batch: as it does, or as its root."""

_WARM_UP_EPOCHS = 5


@dataclass(frozen=True, slots=True)
class RateScale:
    """What multiplies the rate that the script has chosen, at each update of a training."""

    rule: str
    batch_factor: int
    warm_up_steps: int

    @staticmethod
    def of(
        rule: str | None, batch_factor: int, steps_per_epoch: int, epochs: int
    ) -> RateScale | None:
        """Return the scale of a training, None without a rule or a larger batch.

        A short training warms up until its end.
        """
        if rule is None or batch_factor == 1:
            return None
        return RateScale(rule, batch_factor, steps_per_epoch * min(epochs, _WARM_UP_EPOCHS))

    @property
    def factor(self) -> float:
        """The factor after the warm-up."""
        return math.sqrt(self.batch_factor) if self.rule == "sqrt" else float(self.batch_factor)

    @property
    def growth(self) -> float:
        """What an update of the warm-up adds to the factor."""
        return (self.factor - 1.0) / self.warm_up_steps

    def __str__(self) -> str:
        """Return the scale in words."""
        return f"{self.rule} x{self.factor:g} over {self.warm_up_steps} steps"
