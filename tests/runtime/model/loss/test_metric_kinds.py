"""Which metrics hold values of whole batches, and which of these are not those of their parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.model.kinds import MetricKinds, Values, leaf_metrics, metric_kinds

pytestmark = pytest.mark.tensorflow


def metric(name: str, *paths: str, inner: tuple[Any, ...] = ()) -> Any:
    own = [SimpleNamespace(path=path) for path in paths]
    within = [variable for found in inner for variable in found.variables]
    return SimpleNamespace(name=name, variables=own + within, _metrics=inner)


def values(**found: float) -> Values:
    return {path: np.array(value, np.float64) for path, value in found.items()}


def kinds_of(once: Values, twice: Values, other: Values, both: Values) -> MetricKinds:
    """Return what is found about one metric with these variables."""
    return metric_kinds([metric("m", *once)], once, twice, lambda: (other, both))


def test_sum_over_samples_needs_no_further_trial() -> None:
    found = metric_kinds(
        [metric("m", "total", "count")],
        values(total=3.0, count=4.0),
        values(total=6.0, count=8.0),
        lambda: pytest.fail("nothing is left to try"),
    )

    assert found == MetricKinds()


OF_PARTS: dict[str, tuple[float, float, float, float]] = {
    "a quotient": (2.0, 2.0, 4.0, 2.5),
    "the root of a sum": (1.0, 1.4142, 1.0, 1.4142),
    "nothing so far": (0.0, 0.0, 0.0, 0.0),
    "not a number": (np.nan, np.nan, 1.0, np.nan),
}
"""The value with some samples, with each twice, with others, and with both."""


@pytest.mark.parametrize("trials", OF_PARTS.values(), ids=OF_PARTS)
def test_value_of_a_batch_that_need_not_be_that_of_its_parts_is_named(
    trials: tuple[float, float, float, float],
) -> None:
    """It counts batches as its neighbour does: added up, it would be larger than it can be."""
    found = kinds_of(*(values(total=value, count=1.0) for value in trials))

    assert found.by_batch == {"total", "count"}
    assert not found.summed
    (line,) = found.notices()
    assert "metric 'm' is one value of a batch" in line


def test_sum_over_a_batch_adds_up_beside_the_number_of_batches() -> None:
    found = kinds_of(
        values(total=2.0, nothing=0.0, count=1.0),
        values(total=4.0, nothing=0.0, count=1.0),
        values(total=3.0, nothing=0.0, count=1.0),
        values(total=5.0, nothing=0.0, count=1.0),
    )

    assert found == MetricKinds(frozenset({"count"}), summed=frozenset({"total"}))


def test_metric_is_told_apart_from_those_beside_it() -> None:
    """A model holds one metric with all that the user has named."""
    group = metric("all", inner=(metric("mean", "a"), metric("sum", "b", "c")))
    once, other = values(a=1.0, b=1.0, c=2.0), values(a=3.0, b=5.0, c=2.0)
    twice, both = values(a=1.0, b=2.0, c=4.0), values(a=9.0, b=6.0, c=4.0)

    found = metric_kinds([group], once, twice, lambda: (other, both))

    assert found == MetricKinds(frozenset({"a"}), ("mean",))
    names = [(leaf.name, [v.path for v in leaf.variables]) for leaf in leaf_metrics([group])]
    assert names == [("mean", ["a"]), ("sum", ["b", "c"])]
