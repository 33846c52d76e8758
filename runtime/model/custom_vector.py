"""The layout of a contribution of a script's own step, and which of its values are means or sums.

The gradient part has one layout for each turn, all of the same size.  The metrics part is::

    [ share in training | share in validation | metric variables | numbers | numbers of validation ]

Shares of the microbatches of a batch add up to 1.  So the first float tells how many batches a sum
holds, and which of the two steps they went through.

A script updates some metrics with values of single samples, and others with one value of the batch.
Numbers of its logs may be means over the batch, such as a loss, or sums.  A value of the batch
follows from those of its microbatches if it is known which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.model.graphs import Place, VectorLayout
from holdfast.runtime.model.model_call import Starts
from holdfast.runtime.model.step_logs import Number
from holdfast.runtime.model.step_plan import StepPlan

_SHARES = 2

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weighted:
    """Which values of a step are weighted by the microbatch's share of its batch.

    They are means over the batch; all others add up over its microbatches.
    """

    metrics: Sequence[bool]
    """For each metric variable."""
    numbers: Sequence[bool]
    """For each number of the logs."""


class CustomVector:
    """Writes contributions, and finds the parts of totals.

    ``weighted`` tells what is weighted, in training and in validation.
    """

    def __init__(
        self,
        plan: StepPlan,
        metrics: Sequence[Any],
        numbers: Sequence[Number],
        weighted: tuple[Weighted, ...],
    ) -> None:
        self._plan = plan
        self._variables = tuple(metrics)
        self.layouts = tuple(
            VectorLayout.of(v.shape for v in plan.variables_of(turn))
            for turn in range(plan.last_turn + 1)
        )
        self.gradient = max(layout.size for layout in self.layouts)
        sizes = [math.prod(v.shape) for v in metrics]
        self._weighted = tuple(np.repeat(np.array(w.metrics, bool), sizes) for w in weighted)
        self._weighted_numbers = tuple(
            np.repeat(np.array(of_step.numbers, bool), [number.size for number in some])
            for of_step, some in zip(weighted, (plan.logs.numbers, numbers), strict=True)
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
        layout = self.layouts[turn]
        for place, tensor in zip(layout.places, tensors, strict=True):
            out[place.start : place.stop] = np.asarray(tensor).reshape(-1)
        for gap in layout.padding():
            out[gap] = 0.0
        out[layout.size : self.gradient] = 0.0
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


_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step has measured of some samples."""

    samples: float
    metrics: list[Any]
    """Metric variables, updated from zero."""
    numbers: dict[str, Any]
    """Numbers of the logs, by name."""


@dataclass(frozen=True, slots=True)
class MeasuredValues:
    """How the values of a batch follow from those of its parts."""

    weighted: tuple[bool, ...]
    """For each metric variable whether it is updated with values of the whole batch."""
    odd_metrics: tuple[str, ...] = ()
    """Metrics that are neither sums nor means."""
    summed_numbers: frozenset[str] = frozenset()
    """Numbers of the logs that are sums over samples."""
    odd_numbers: tuple[str, ...] = ()
    """Numbers that are neither sums nor means, such as the norm of a gradient."""

    @staticmethod
    def of(
        metrics: Iterable[Any], whole: Measured, parts: tuple[Measured, Measured], tolerance: float
    ) -> MeasuredValues:
        """Return what was found with a batch and with two parts of it."""
        tried = _Trials(whole, parts, tolerance)
        found = list(tried.metrics(metrics))
        return MeasuredValues(
            tuple(is_mean for _, size, is_mean, _ in found for _ in range(size)),
            tuple(name for name, _, _, is_odd in found if is_odd),
            frozenset(tried.summed_numbers()),
            tuple(tried.odd_numbers()),
        )

    def weighted_of(self, numbers: Iterable[Number]) -> Weighted:
        """Return which metric variables and which of the logs' ``numbers`` are weighted."""
        means = [number.name not in self.summed_numbers for number in numbers]
        return Weighted(self.weighted, means)

    def notices(self, step: str) -> Iterator[str]:
        """Yield a line for each value that microbatches cannot measure apart."""
        for name in self.odd_metrics:
            yield (
                f"metric {name!r} of {step} is neither a sum nor a mean over samples: it shows "
                "what its microbatches add up to; --microbatches 1 keeps each batch whole"
            )
        for name in self.odd_numbers:
            yield (
                f"{name!r} in the logs of {step} is neither a mean nor a sum over samples: it "
                "shows the mean of its microbatches; --microbatches 1 keeps each batch whole"
            )


@dataclass(frozen=True, slots=True)
class _Trials:
    whole: Measured
    parts: tuple[Measured, Measured]
    tolerance: float

    def metrics(self, metrics: Iterable[Any]) -> Iterator[tuple[str, int, bool, bool]]:
        """Yield each metric's name, number of variables, and whether it is a mean, or nothing.

        The variables of one metric belong together.
        """
        one, other = self.parts
        start = 0
        for metric in metrics:
            stop = start + len(metric.variables)
            values = [
                (self.whole.metrics[i], one.metrics[i], other.metrics[i])
                for i in range(start, stop)
            ]
            added = sum(_distance(m, m1 + m2) for m, m1, m2 in values)
            mean = sum(_distance(m, self._mean(m1, m2)) for m, m1, m2 in values)
            is_odd = min(mean, added) > self.tolerance * len(values)
            yield metric.name, len(values), mean < added, is_odd
            start = stop

    def summed_numbers(self) -> Iterator[str]:
        """Yield the numbers that are sums, and no means."""
        for name, number, one, other in self._numbers_that_are_no_means():
            if self._agree(number, one + other):
                yield name

    def odd_numbers(self) -> Iterator[str]:
        """Yield the numbers that are neither."""
        for name, number, one, other in self._numbers_that_are_no_means():
            if not self._agree(number, one + other):
                yield name

    def _numbers_that_are_no_means(self) -> Iterator[tuple[str, Any, Any, Any]]:
        for name, number in self.whole.numbers.items():
            one, other = (part.numbers[name] for part in self.parts)
            is_finite = all(np.isfinite(value).all() for value in (number, one, other))
            if is_finite and not self._agree(number, self._mean(one, other)):
                yield name, number, one, other

    def _mean(self, one: Any, other: Any) -> Any:
        n1, n2 = (part.samples / self.whole.samples for part in self.parts)
        return n1 * one + n2 * other

    def _agree(self, found: Any, expected: Any) -> bool:
        return _distance(found, expected) <= self.tolerance


def _distance(found: Any, expected: Any) -> float:
    scale = np.abs(found).sum() + np.abs(expected).sum() + _TINY
    return float(np.abs(found - expected).sum() / scale)
