"""What becomes of state over the parts of a batch, found out by trials, and how it travels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

from holdfast.runtime.model.kinds import (
    StateKind,
    StateTrial,
    arrived,
    is_whole,
    sums_tried_again,
    travelling,
)

pytestmark = pytest.mark.tensorflow

Rule: TypeAlias = Callable[[Any, Any], Any]
"""The state after some samples, from the state before."""

SAMPLES = np.array([1.0, 2.0, 4.0, 9.0, 3.0, 6.0])
FIRST = 2
"""Samples of the first of two parts."""


def trial_of(rule: Rule, before: float = 0.5, tolerance: float = 2e-3) -> StateTrial:
    """Return the trial of a rule on all samples, on two parts, and on the first part twice."""
    start = np.array(before)
    one, other = SAMPLES[:FIRST], SAMPLES[FIRST:]
    parts = [(len(p) / len(SAMPLES), np.asarray(rule(start, p))) for p in (one, other)]
    twice = rule(start, np.concatenate([one, one]))
    return StateTrial(
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

    assert trial_of(rule).kind is kind


@pytest.mark.parametrize(
    ("tolerance", "kind"), [(2e-2, StateKind.MEAN), (1e-4, StateKind.OTHER)], ids=["16", "32"]
)
def test_tolerance_is_a_part_of_what_the_trials_change(tolerance: float, kind: StateKind) -> None:
    """A mean that is as rough as one in 16 bits."""
    trial = trial_of(lambda before, x: x.mean() * (1.0 + 1e-3 * len(x)), tolerance=tolerance)

    assert trial.kind is kind


class _Trials:
    """Variables with rules, which can be tried with other values of some of them."""

    def __init__(self, rules: Mapping[str, Rule], before: float) -> None:
        self.variables = [keras.Variable(before, name=name) for name in rules]
        self.shifted: list[str] = []
        self._rules = rules
        self._before = before

    def after(self, values: Sequence[tuple[Any, Any]] = ()) -> dict[str, Any]:
        """Return what one part of the samples leaves."""
        self.shifted = [variable.path for variable, _ in values]
        starts = {variable.path: np.asarray(value, np.float64) for variable, value in values}
        return {
            name: np.asarray(rule(starts.get(name, self._before), SAMPLES))
            for name, rule in self._rules.items()
        }


def test_sum_that_decays_from_zero_is_found_by_a_shift() -> None:
    rules = {name: RULES[name][0] for name in ("sum", "sum that decays", "mean")}
    kinds = {name: trial_of(rule, before=0.0).kind for name, rule in rules.items()}
    trials = _Trials(rules, 0.0)

    found = sums_tried_again(kinds, trials.variables, trials.after(), trials.after)

    assert [*kinds.values()] == [StateKind.SUM, StateKind.SUM, StateKind.MEAN]
    assert [*found.values()] == [StateKind.SUM, StateKind.DECAYED_SUM, StateKind.MEAN]
    assert trials.shifted == ["sum", "sum that decays"]


def test_sum_of_integers_is_shifted_by_a_whole_number() -> None:
    count = keras.Variable(5, dtype="int64", name="count")
    given: list[Any] = []

    def again(values: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        given.extend(value for _, value in values)
        return {"count": np.array(8.0 + 6)}

    found = sums_tried_again({"count": StateKind.SUM}, [count], {"count": np.array(11.0)}, again)

    assert found == {"count": StateKind.SUM}
    assert given[0].dtype == "int64"
    assert int(given[0]) == 8


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
