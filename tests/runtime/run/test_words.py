"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run import progress


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.31, "0.3100"),
        (-2.5, "-2.5000"),
        (0.0, "0.0000"),
        (0.001, "1.0000e-03"),
        (9.8585e-4, "9.8585e-04"),
        (123456.0, "123456.0000"),
        (1e12, "1.0000e+12"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert progress.number(value) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0.2, "5.0 s/step"), (1.0, "1.0 steps/s"), (12.34, "12.3 steps/s"), (812.6, "813 steps/s")],
)
def test_rate(per_s: float, text: str) -> None:
    assert progress.rate(per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0 s"), (0.4, "0 s"), (59.0, "59 s"), (60.0, "1:00"), (185.0, "3:05"),
     (3599.7, "1:00:00"), (7800.0, "2:10:00"), (90061.0, "25:01:01")],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (326 << 20, "326 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 52, "4096.0 TiB"),
    ],
)
def test_memory(size_bytes: int, text: str) -> None:
    assert progress.memory(size_bytes) == text


def test_name_of_a_metric_cannot_leave_its_line() -> None:
    assert progress.metrics({"a\nb\x1b[2J": 1.0}) == ["a b [2J: 1.0000"]


def test_wide_letters_take_two_columns() -> None:
    assert [progress.columns(text) for text in ("", "loss", "損失", "é")] == [0, 4, 4, 1]


def test_metrics_begin_with_the_loss() -> None:
    assert progress.metrics({"accuracy": 0.9, "loss": 0.31}, "val_") == [
        "val_loss: 0.3100",
        "val_accuracy: 0.9000",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.4, "59 s"), (59.6, "1:00"), (119.6, "2:00"), (3599.4, "59:59"), (36000.0, "10:00:00")],
)
def test_duration_is_rounded_before_it_is_cut_into_minutes(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


@given(st.floats(-1e6, 1e6))
def test_duration_reads_back_as_the_nearest_second(seconds: float) -> None:
    text = progress.duration(seconds)

    parts = [int(part) for part in text.removesuffix(" s").split(":")]
    total = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    assert abs(total - max(0.0, seconds)) <= 0.5
    assert all(part < 60 for part in parts[1:])
    assert (" s" in text) == (total < 60)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(1024, "1 KiB"), (1 << 20, "1 MiB"), (1023 << 20, "1023 MiB"), (1 << 30, "1.0 GiB")],
)
def test_memory_changes_its_unit_at_1024(size_bytes: int, text: str) -> None:
    assert progress.memory(size_bytes) == text


@pytest.mark.parametrize(
    ("many", "arguments", "text"),
    [
        (0, ["worker"], "0 workers"),
        (1, ["worker"], "1 worker"),
        (2, ["worker"], "2 workers"),
        (1, ["copy", "copies"], "1 copy"),
        (3, ["copy", "copies"], "3 copies"),
    ],
)
def test_noun_follows_its_number(many: int, arguments: list[str], text: str) -> None:
    assert progress.count(many, *arguments) == text


@pytest.mark.parametrize(
    ("label", "text"),
    [("concluding", "script after training"), ("training", "training"), ("of later", "of later")],
)
def test_phase_is_named_as_people_read_it(label: str, text: str) -> None:
    assert progress.phase(label) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e7, "1.0000e+07"), (9999999.0, "9999999.0000"), (-1e-3, "-1.0000e-03")],
)
def test_number_changes_its_form_at_both_ends(value: float, text: str) -> None:
    assert progress.number(value) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0.99, "1.0 s/step"), (99.9, "99.9 steps/s"), (100.0, "100 steps/s")],
)
def test_rate_is_told_by_the_step_below_one_a_second(per_s: float, text: str) -> None:
    assert progress.rate(per_s) == text


def test_metrics_keep_their_order_behind_the_loss() -> None:
    values = {"b": 1.0, "val_loss": 2.0, "loss": 3.0, "a": 4.0}

    assert [text.partition(":")[0] for text in progress.metrics(values)] == [
        "loss", "b", "val_loss", "a",
    ]  # fmt: skip
