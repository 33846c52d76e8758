"""Metrics and numbers of a step: which are means, which are sums, and which are neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

from holdfast.runtime.model.custom_vector import Measured, MeasuredValues, Weighted
from holdfast.runtime.model.step_logs import Number

pytestmark = pytest.mark.tensorflow

Value: TypeAlias = Callable[[Any], Any]
"""What is measured of some samples."""

SAMPLES = np.array([1.0, 2.0, 4.0, 9.0, 3.0, 6.0])
FIRST = 2
"""Samples of the first of two parts."""

EXACT, ROUGH = 1e-2, 2e-1


def measured(samples: Any, metrics: list[Value], numbers: Mapping[str, Value]) -> Measured:
    return Measured(
        float(len(samples)),
        [np.asarray(value(samples), np.float64) for value in metrics],
        {name: np.asarray(value(samples), np.float64) for name, value in numbers.items()},
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
    return MeasuredValues.of([metric for metric, _ in given], whole, (one, other), tolerance)


def mean_metric(name: str = "mean") -> Any:
    """Return a metric with two variables, total and count."""
    metric = keras.metrics.Mean(name=name)
    assert len(metric.variables) == 2
    return metric


METRICS: dict[str, tuple[list[Value], bool, bool]] = {
    "values of samples": ([np.sum, len], False, False),
    "value of the batch": ([np.mean, lambda x: 1.0], True, False),
    "never updated": ([lambda x: 0.0, lambda x: 0.0], False, False),
    "mean of zero of the batch": ([lambda x: 0.0, lambda x: 1.0], True, False),
    "maximum of the batch": ([np.max, lambda x: 1.0], True, True),
    "square of a sum": ([lambda x: np.sum(x) ** 2, len], False, True),
}
"""Values of total and count, whether they are weighted, and whether they are odd."""


@pytest.mark.parametrize("name", METRICS)
def test_variables_of_a_metric_are_weighted_together(name: str) -> None:
    values, is_weighted, is_odd = METRICS[name]

    found = found_in([(mean_metric(), values)])

    assert found.weighted == (is_weighted, is_weighted)
    assert found.odd_metrics == (("mean",) if is_odd else ())


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


def test_what_is_no_sum_is_weighted_in_the_order_of_the_logs() -> None:
    found = found_in(
        [(mean_metric(), [np.mean, lambda x: 1.0])], {"total": np.sum, "loss": np.mean}
    )

    numbers = [Number("loss", ()), Number("total", ()), Number("unknown", (2,))]

    assert found.weighted_of(numbers) == Weighted((True, True), [True, False, True])


def test_each_odd_value_is_told_in_a_line() -> None:
    found = found_in(
        [(mean_metric("steepest"), [np.max, lambda x: 1.0]), (mean_metric(), [np.sum, len])],
        {"loss": np.mean, "norm": lambda x: np.sqrt(np.sum(x**2))},
    )

    metric, number = found.notices("Own.train_step")

    assert metric.startswith("metric 'steepest' of Own.train_step is neither a sum nor a mean")
    assert number.startswith("'norm' in the logs of Own.train_step is neither a mean nor a sum")
