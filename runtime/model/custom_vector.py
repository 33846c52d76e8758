"""The layout of a contribution of a script's own step.

The gradient part has one layout for each turn, all of the same size.  The metrics part is::

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
from holdfast.runtime.model.graphs import Place, VectorLayout
from holdfast.runtime.model.model_call import Starts
from holdfast.runtime.model.step_logs import Number
from holdfast.runtime.model.step_plan import StepPlan
from holdfast.runtime.model.step_probe import MeasuredValues

_SHARES = 2

Floats = npt.NDArray[np.float64]


class CustomVector:
    """Writes contributions, and finds the parts of totals.

    ``measured`` tells what is weighted, in training and in validation.
    """

    def __init__(
        self,
        plan: StepPlan,
        metrics: Sequence[Any],
        numbers: Sequence[Number],
        measured: tuple[MeasuredValues, ...],
    ) -> None:
        self._plan = plan
        self._variables = tuple(metrics)
        self.layouts = tuple(
            VectorLayout.of(v.shape for v in plan.variables_of(turn))
            for turn in range(plan.last_turn + 1)
        )
        self.gradient = max(layout.size for layout in self.layouts)
        sizes = [math.prod(v.shape) for v in metrics]
        self._weighted = tuple(np.repeat(np.array(m.weighted, bool), sizes) for m in measured)
        self._weighted_numbers = tuple(
            np.repeat(
                np.array([number.name not in of_step.summed_numbers for number in some], bool),
                [number.size for number in some],
            )
            for of_step, some in zip(measured, (plan.logs.numbers, numbers), strict=True)
        )
        first = _SHARES + sum(sizes)
        own = first + sum(number.size for number in plan.logs.numbers)
        self._of_metrics = slice(_SHARES, first)
        self._of_numbers = slice(first, own)
        self.metrics = own + sum(number.size for number in numbers)
        self._of_validation = slice(own, self.metrics)

    def write(
        self, out: FloatVector, turn: int, found: tuple[Sequence[Any], ...], share: float
    ) -> None:
        """Write the outputs of a training graph: tensors of the turn, metrics, numbers."""
        tensors, metrics, numbers = found
        self.layouts[turn].write(out[: self.gradient], tensors)
        rest = out[self.gradient :]
        rest[:_SHARES] = share, 0.0
        rest[self._of_metrics] = _weigh(metrics, share, self._weighted[0])
        rest[self._of_numbers] = _weigh(numbers, share, self._weighted_numbers[0])
        rest[self._of_validation] = 0.0

    def write_evaluation(
        self, out: FloatVector, found: tuple[Sequence[Any], ...], share: float
    ) -> None:
        """Write the outputs of a validation graph: metrics and numbers."""
        metrics, numbers = found
        out[:_SHARES] = 0.0, share
        out[self._of_metrics] = _weigh(metrics, share, self._weighted[1])
        out[self._of_numbers] = 0.0
        out[self._of_validation] = _weigh(numbers, share, self._weighted_numbers[1])

    def places_of_calls(self, turn: int) -> list[tuple[int, list[Place]]]:
        """Return the places of each update's gradients: the update's index, and its places."""
        places = iter(self.layouts[turn].places)
        calls = self._plan.calls_of(turn)
        return [(i, [next(places) for _ in self._plan.graded[i]]) for i in calls]

    def numbers(self, total: FloatVector) -> FloatVector:
        """Return the numbers of a step's batch, which has been trained with."""
        rest = total[self.gradient :]
        numbers: FloatVector = rest[self._of_numbers] / rest[0]
        return numbers

    def is_evaluation(self, sums: Floats) -> bool:
        """Return whether sums of metrics are those of validation data."""
        return bool(sums[0] == 0.0 < sums[1])

    def evaluation_numbers(self, sums: Floats) -> Floats:
        """Return the numbers of validation, as means over its batches."""
        numbers: Floats = sums[self._of_validation] / sums[1]
        return numbers

    def assign_metrics(self, sums: Floats, starts: Starts) -> None:
        """Give the metrics' variables the values of the sums, beside what they begin with."""
        start = _SHARES
        for variable in self._variables:
            stop = start + math.prod(variable.shape)
            value = sums[start:stop].reshape(variable.shape) + starts.get(id(variable), 0)
            variable.assign(tf.cast(value, variable.dtype))
            start = stop


def _weigh(tensors: Sequence[Any], share: float, weighted: Any) -> FloatVector:
    values = _flat(tensors)
    values[weighted] *= np.float32(share)
    return values


def _flat(tensors: Sequence[Any]) -> FloatVector:
    arrays = [np.asarray(tensor, np.float32).reshape(-1) for tensor in tensors]
    return np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
