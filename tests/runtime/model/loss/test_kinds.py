"""Which metrics hold values of whole batches, and what becomes of state over a batch's parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeAlias

import keras
import numpy as np
import pytest

from holdfast.runtime.model.kinds import (
    MetricKinds,
    StateKind,
    Values,
    arrived,
    is_whole,
    leaf_metrics,
    metric_kinds,
    state_kind,
    state_kinds,
    travelling,
)

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
    names = [(name, [v.path for v in own]) for name, own in leaf_metrics([group])]
    assert names == [("mean", ["a"]), ("sum", ["b", "c"])]


Rule: TypeAlias = Callable[[Any, Any], Any]
"""The state after some samples, from the state before."""

SAMPLES = np.array([1.0, 2.0, 4.0, 9.0, 3.0, 6.0])
FIRST = 2
"""Samples of the first of two parts."""


def kind_of(rule: Rule, before: float = 0.5, tolerance: float = 2e-3) -> StateKind:
    """Return what is found with a rule on all samples, on two parts, and on the first one twice."""
    start = np.array(before)
    one, other = SAMPLES[:FIRST], SAMPLES[FIRST:]
    parts = [(len(p) / len(SAMPLES), np.asarray(rule(start, p))) for p in (one, other)]
    twice = rule(start, np.concatenate([one, one]))
    return state_kind(
        start,
        np.asarray(rule(start, SAMPLES)),
        (parts[0], parts[1]),
        np.asarray(twice),
        tolerance,
    )


RULES: dict[str, tuple[Rule, StateKind]] = {
    "constant": (lambda before, x: before, StateKind.SAME),
    "steps": (lambda before, x: before + 1.0, StateKind.SAME),
    "mean": (lambda before, x: x.mean(), StateKind.MEAN),
    "moving mean": (lambda before, x: 0.9 * before + 0.1 * x.mean(), StateKind.MEAN),
    "samples": (lambda before, x: before + len(x), StateKind.SUM),
    "sum": (lambda before, x: before + x.sum(), StateKind.SUM),
    "sum that decays": (lambda before, x: 0.5 * before + x.sum(), StateKind.DECAYED_SUM),
    "sum of one batch": (lambda before, x: x.sum(), StateKind.DECAYED_SUM),
    "maximum": (lambda before, x: np.maximum(before, x.max()), StateKind.OTHER),
    "moving variance": (lambda before, x: 0.9 * before + 0.1 * x.var(), StateKind.OTHER),
    "last sample": (lambda before, x: x[-1], StateKind.OTHER),
    "square of a sum": (lambda before, x: x.sum() ** 2, StateKind.OTHER),
}


@pytest.mark.parametrize("name", RULES)
def test_kind_follows_from_what_the_parts_leave(name: str) -> None:
    rule, kind = RULES[name]

    assert kind_of(rule) is kind


@pytest.mark.parametrize(
    ("tolerance", "kind"), [(2e-2, StateKind.MEAN), (1e-4, StateKind.OTHER)], ids=["16", "32"]
)
def test_tolerance_is_a_part_of_what_the_trials_change(tolerance: float, kind: StateKind) -> None:
    """A mean that is as rough as one in 16 bits."""
    found = kind_of(lambda before, x: x.mean() * (1.0 + 1e-3 * len(x)), tolerance=tolerance)

    assert found is kind


def test_sum_that_decays_from_zero_is_found_by_a_shift() -> None:
    """One of integers is shifted by a whole number."""
    rules = {name: RULES[name][0] for name in ("sum", "sum that decays", "mean", "samples")}
    dtypes = {"samples": "int64"}
    variables = [keras.Variable(0, dtype=dtypes.get(n, "float32"), name=n) for n in rules]
    one, other = SAMPLES[:FIRST], SAMPLES[FIRST:]
    shifted: list[Any] = []

    def after(samples: Any, starts: Mapping[str, Any] = MappingProxyType({})) -> Values:
        return {n: np.asarray(rule(starts.get(n, 0.0), samples)) for n, rule in rules.items()}

    def again(values: Sequence[tuple[Any, Any]]) -> Values:
        shifted.extend(value.dtype for _, value in values)
        return after(one, {v.path: np.asarray(value, np.float64) for v, value in values})

    parts = [(1 / 3, after(one)), (2 / 3, after(other))]
    twice = after(np.concatenate([one, one]))
    found = state_kinds(variables, after(SAMPLES), parts, twice, 2e-3, again)

    assert found == {name: RULES[name][1] for name in rules}
    assert shifted == ["float32", "float32", "int64"]


JOURNEYS: dict[str, tuple[str, Any, StateKind, Rule]] = {
    "mean": ("float32", 0.5, StateKind.MEAN, RULES["moving mean"][0]),
    "sum": ("float32", 0.5, StateKind.SUM, RULES["sum"][0]),
    "steps": ("float32", 7.0, StateKind.SAME, RULES["steps"][0]),
    "whole steps": ("int64", 2**40, StateKind.SAME, lambda before, x: before + 1),
    "whole samples": ("int32", 2**24 + 1, StateKind.SUM, lambda before, x: before + len(x)),
    "flag": ("bool", False, StateKind.SAME, lambda before, x: True),
    "flag that stays": ("bool", True, StateKind.SAME, lambda before, x: True),
    "neither": ("float32", 0.5, StateKind.OTHER, lambda before, x: before + 2.0),
}


@pytest.mark.parametrize("bounds", [(0, 6), (0, 1, 6), (0, 2, 3, 6)], ids=["1", "2", "3"])
@pytest.mark.parametrize("name", JOURNEYS)
def test_state_arrives_as_the_whole_batch_leaves_it(name: str, bounds: tuple[int, ...]) -> None:
    dtype, before, kind, rule = JOURNEYS[name]
    variable = keras.Variable(np.array(before, dtype), dtype=dtype)
    parts = [SAMPLES[a:b] for a, b in itertools.pairwise(bounds)]
    tensor = keras.ops.convert_to_tensor

    total = sum(
        travelling(variable, tensor(np.array(rule(before, part), dtype)), float(len(part)), kind)
        for part in parts
    )
    found = arrived(variable, total, tensor(6.0), kind)

    assert total.dtype == "float32"
    assert found.dtype == dtype
    expected = np.array(rule(before, SAMPLES), dtype)
    np.testing.assert_allclose(found, expected, rtol=0.0 if is_whole(variable) else 1e-6)


def test_integer_is_found_from_a_total_that_was_rounded() -> None:
    variable = keras.Variable(10, dtype="int32")
    total = keras.ops.convert_to_tensor(2.9999998)

    assert int(arrived(variable, total, 6.0, StateKind.SUM)) == 13
