"""What a step measures, of a batch and of its parts: means, sums, or neither.

A script updates some metrics with values of single samples, and others with one value of the
batch.  Numbers of its logs may be means over the batch, such as a loss, or sums.  A value of the
batch follows from those of its microbatches if it is known which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.runtime.custom.custom_vector import Weighted
from holdfast.runtime.custom.step_logs import Number

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
