"""The layout of the metrics part of a contribution of a script's own step.

The metrics part is::

    [ share in training | share in validation | metric variables | numbers | numbers of validation ]

Shares of the microbatches of a batch add up to 1.  So the first float tells how many batches a sum
holds, and which of the two steps they went through.

A value of a batch follows from those of its microbatches if it is known which ones are means, and
which ones are sums: `step_probe` has found it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.model.model_call import Starts
from holdfast.runtime.model.step_logs import Number
from holdfast.runtime.model.step_probe import MeasuredValues

_SHARES = 2

Floats = npt.NDArray[np.float64]


class CustomVector:
    """Lays out metrics and numbers, and finds them in totals.

    ``numbers`` are those of the logs of training and of validation.  ``measured`` tells what is
    weighted in each.
    """

    def __init__(
        self,
        metrics: Sequence[Any],
        numbers: tuple[Sequence[Number], Sequence[Number]],
        measured: tuple[MeasuredValues, MeasuredValues],
    ) -> None:
        self._variables = tuple(metrics)
        sizes = [math.prod(v.shape) for v in metrics]
        self._weighted = [
            _weighted(*of_step, sizes) for of_step in zip(measured, numbers, strict=True)
        ]
        first = _SHARES + sum(sizes)
        own = first + sum(number.size for number in numbers[0])
        self.size = own + sum(number.size for number in numbers[1])
        self._of_metrics = slice(_SHARES, first)
        self._of_numbers = slice(first, own), slice(own, self.size)

    def part(self, found: FloatVector, share: float, *, training: bool) -> FloatVector:
        """Return the metrics part of a microbatch, from its metrics and numbers."""
        step = 0 if training else 1
        values = np.array(found)
        values[self._weighted[step]] *= np.float32(share)
        part = np.zeros(self.size, np.float32)
        part[step] = share
        numbers = self._of_numbers[step]
        metrics = values.size - (numbers.stop - numbers.start)
        part[self._of_metrics], part[numbers] = values[:metrics], values[metrics:]
        return part

    def numbers(self, total: FloatVector) -> FloatVector:
        """Return the numbers of a step's batch, from the metrics part of its total."""
        numbers: FloatVector = total[self._of_numbers[0]] / total[0]
        return numbers

    def is_evaluation(self, sums: Floats) -> bool:
        """Return whether sums of metrics are those of validation data."""
        return bool(sums[0] == 0.0 < sums[1])

    def evaluation_numbers(self, sums: Floats) -> Floats:
        """Return the numbers of validation, as means over its batches."""
        numbers: Floats = sums[self._of_numbers[1]] / sums[1]
        return numbers

    def assign_metrics(self, sums: Floats, starts: Starts) -> None:
        """Give the metrics' variables the values of the sums, beside what they begin with."""
        start = _SHARES
        for variable in self._variables:
            stop = start + math.prod(variable.shape)
            value = sums[start:stop].reshape(variable.shape) + starts.get(id(variable), 0)
            variable.assign(tf.cast(value, variable.dtype))
            start = stop


def _weighted(measured: MeasuredValues, numbers: Sequence[Number], sizes: Sequence[int]) -> Any:
    """Return for each float of metrics and numbers whether it is weighted by the share."""
    of_numbers = [number.name not in measured.summed_numbers for number in numbers]
    return np.repeat(
        np.array([*measured.weighted, *of_numbers], bool),
        np.array([*sizes, *(number.size for number in numbers)], int),
    )
