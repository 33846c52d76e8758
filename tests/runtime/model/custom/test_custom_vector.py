"""The layout of a contribution of a step, and which of its values are means or sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.model.batch_mixing import MeasuredValues, SampleTrial
from holdfast.runtime.model.captured_step import Number
from holdfast.runtime.model.step_contributor import CustomVector

pytest.importorskip("keras")


pytestmark = pytest.mark.tensorflow

LOSS, NORMS, SCORE = Number("loss", ()), Number("norms", (2,)), Number("score", ())


def vector_of() -> CustomVector:
    """Return the layout of two metric variables, the first of which is a mean, and of numbers.

    In training the loss is a mean and the norms are sums, in validation the score is a mean.
    """
    return CustomVector(
        [keras.Variable(np.zeros(shape)) for shape in ((), (2,))],
        ((LOSS, NORMS), (SCORE,)),
        (
            MeasuredValues((True, False), summed_numbers=frozenset({"norms"})),
            MeasuredValues((False, True)),
        ),
    )


def part(vector: CustomVector, share: float, value: float = 1.0, *, training: bool = True) -> Any:
    """Return the metrics part of a microbatch whose metrics and numbers are all ``value``."""
    return vector.part(np.full(6 if training else 4, value, np.float32), share, training=training)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (True, [0.5, 0, 1.0, 2.0, 2.0, 1.0, 2.0, 2.0, 0]),
        (False, [0, 0.5, 2.0, 1.0, 1.0, 0, 0, 0, 1.0]),
    ],
)
def test_each_step_has_floats_of_its_own_and_means_are_weighted(
    expected: list[float], *, training: bool
) -> None:
    """The share stands first, and the numbers of the other step are zero."""
    assert part(vector_of(), 0.5, 2.0, training=training).tolist() == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_numbers_of_a_batch_follow_from_microbatches_of_any_sizes(sizes: list[int]) -> None:
    """The loss is the mean over the samples, the norms are sums of the microbatches."""
    vector = vector_of()
    losses = [float(number) for number, _ in enumerate(sizes)]

    total = sum(
        part(vector, size / sum(sizes), loss) for size, loss in zip(sizes, losses, strict=True)
    )

    mean = np.average(losses, weights=sizes)
    np.testing.assert_allclose(vector.numbers(total), [mean, *[sum(losses)] * 2], rtol=1e-5)


def test_numbers_of_a_batch_of_unknown_size_are_means_over_its_samples() -> None:
    """The share of a microbatch is then its number of samples."""
    vector = vector_of()

    total = part(vector, share=3.0, value=2.0) + part(vector, share=1.0, value=6.0)

    assert vector.numbers(total)[0] == 3.0


pytest.importorskip("keras")


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
    return MeasuredValues.of([metric for metric, _ in given], whole, (one, other), tolerance)


def mean_metric(name: str = "mean") -> Any:
    """Return a metric with two variables, total and count."""
    metric = keras.metrics.Mean(name=name)
    assert len(metric.variables) == 2
    return metric


MEASURED_METRICS: dict[str, tuple[list[Value], bool, bool]] = {
    "values of samples": ([np.sum, len], False, False),
    "value of the batch": ([np.mean, lambda x: 1.0], True, False),
    "never updated": ([lambda x: 0.0, lambda x: 0.0], False, False),
    "mean of zero of the batch": ([lambda x: 0.0, lambda x: 1.0], True, False),
    "maximum of the batch": ([np.max, lambda x: 1.0], True, True),
    "square of a sum": ([lambda x: np.sum(x) ** 2, len], False, True),
}
"""Values of total and count, whether they are weighted, and whether they are odd."""


@pytest.mark.parametrize("name", MEASURED_METRICS)
def test_variables_of_a_metric_are_weighted_together(name: str) -> None:
    values, is_weighted, is_odd = MEASURED_METRICS[name]

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
