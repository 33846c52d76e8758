"""Which values of a step of the script's own are means over samples, and which are sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
import pytest

from holdfast.runtime.model.batch_mixing import MeasuredValues, SampleTrial

pytestmark = pytest.mark.tensorflow


Value: TypeAlias = Callable[[Any], Any]
"""What is measured of some samples."""

SAMPLES = np.array([1.0, 2.0, 4.0, 9.0, 3.0, 6.0])

FIRST = 2
"""Samples of the first of two parts."""

EXACT, ROUGH = 1e-2, 2e-1


def measured(samples: Any, metrics: list[Value], numbers: Mapping[str, Value]) -> SampleTrial:
    return SampleTrial(
        float(len(samples)),
        {str(n): np.asarray(value(samples), np.float64) for n, value in enumerate(metrics)},
        numbers={name: np.asarray(value(samples), np.float64) for name, value in numbers.items()},
    )


def found_in(
    metrics: list[tuple[Any, list[Value]]] | None = None,
    numbers: Mapping[str, Value] | None = None,
    tolerance: float = EXACT,
) -> MeasuredValues:
    """Return what a trial finds; each metric comes with the values of its variables."""
    given = metrics or []
    values = [value for _, of_metric in given for value in of_metric]
    whole, one, other = (
        measured(some, values, numbers or {})
        for some in (SAMPLES, SAMPLES[:FIRST], SAMPLES[FIRST:])
    )
    return MeasuredValues.of(
        [(metric.name, metric.variables) for metric, _ in given], whole, (one, other), tolerance
    )


def mean_metric(name: str = "mean") -> Any:
    """Return a metric with two variables, total and count."""
    metric = keras.metrics.Mean(name=name)
    assert len(metric.variables) == 2
    return metric


def test_each_metric_is_judged_by_its_own_variables() -> None:
    found = found_in(
        [
            (keras.metrics.Sum(name="sum"), [np.sum]),
            (mean_metric("batch"), [np.mean, lambda x: 1.0]),
            (mean_metric("steepest"), [lambda x: np.max(x) ** 2, lambda x: 1.0]),
            (mean_metric("samples"), [np.sum, len]),
        ]
    )

    assert found.weighted == (False, True, True, True, True, False, False)
    assert found.odd_metrics == ("steepest",)


MEAN, SUM, ODD = "mean", "sum", "odd"

NUMBERS: dict[str, tuple[Value, str]] = {
    "mean": (np.mean, MEAN),
    "constant": (lambda x: 0.1, MEAN),
    "zero": (lambda x: 0.0, MEAN),
    "means in a vector": (lambda x: [np.mean(x), np.mean(x**2)], MEAN),
    "sum": (np.sum, SUM),
    "samples": (len, SUM),
    "sums in a vector": (lambda x: [np.sum(x), 2.0 * np.sum(x)], SUM),
    "norm": (lambda x: np.sqrt(np.sum(x**2)), ODD),
    "mean beside a sum": (lambda x: [np.mean(x), np.sum(x)], ODD),
    "not a number": (lambda x: np.nan, MEAN),
    "infinite in a part": (lambda x: np.inf if len(x) == FIRST else np.sum(x), MEAN),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_number_of_the_logs_is_a_mean_a_sum_or_odd(name: str) -> None:
    value, kind = NUMBERS[name]

    found = found_in(numbers={"loss": value})

    assert found.summed_numbers == ({"loss"} if kind is SUM else set())
    assert found.odd_numbers == (("loss",) if kind is ODD else ())


@pytest.mark.parametrize(("tolerance", "odd"), [(EXACT, ("loss",)), (ROUGH, ())])
def test_layers_of_16_bits_are_judged_roughly(tolerance: float, odd: tuple[str, ...]) -> None:
    found = found_in(
        numbers={"loss": lambda x: np.mean(x) * (1.5 if len(x) == FIRST else 0.95)},
        tolerance=tolerance,
    )

    assert found.odd_numbers == odd
