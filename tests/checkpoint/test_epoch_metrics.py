from __future__ import annotations

import json
import math

import pytest

from holdfast.checkpoint.manifest import EpochMetrics


def test_metrics_are_read_back_from_a_manifests_cursor() -> None:
    metrics = EpochMetrics.join(3, 120, {"loss": 0.5, "accuracy": 1}, {"loss": 0.75})

    cursor = json.loads(json.dumps(metrics.into({"step": 125})))

    assert cursor["step"] == 125
    assert EpochMetrics.of(cursor) == metrics
    assert metrics.values == {"loss": 0.5, "accuracy": 1, "val_loss": 0.75}


def test_what_is_not_finite_is_left_out() -> None:
    cursor = EpochMetrics(1, 10, {"loss": math.nan, "a": math.inf, "b": 2.0}).into({})

    found = EpochMetrics.of(json.loads(json.dumps(cursor, allow_nan=False)))

    assert found == EpochMetrics(1, 10, {"b": 2.0})


@pytest.mark.parametrize(
    "cursor",
    [
        {},
        {"epoch": 3},
        {"epoch": {"number": 3, "step": 1}},
        {"epoch": {"number": "3", "step": 1, "metrics": {}}},
        {"epoch": {"number": 3, "step": None, "metrics": {}}},
    ],
)
def test_other_cursors_hold_none(cursor: dict[str, object]) -> None:
    assert EpochMetrics.of(cursor) is None


@pytest.mark.parametrize("crafted", ["1" + "0" * 400, "1e999", "-Infinity", "NaN"])
def test_number_that_no_float_holds_is_no_metric(crafted: str) -> None:
    cursor = json.loads(f'{{"epoch": {{"number": 1, "step": 1, "metrics": {{"a": {crafted}}}}}}}')

    assert EpochMetrics.of(cursor) == EpochMetrics(1, 1, {})


def test_what_is_no_number_is_no_metric() -> None:
    cursor = {"epoch": {"number": 1, "step": 1, "metrics": {"a": "1", "b": True, "c": 1}}}

    assert EpochMetrics.of(cursor) == EpochMetrics(1, 1, {"c": 1.0})
