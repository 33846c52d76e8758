"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from holdfast.runtime.progress import words


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
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0.2, "5.0 s/step"), (1.0, "1.0 steps/s"), (12.34, "12.3 steps/s"), (812.6, "813 steps/s")],
)
def test_rate(per_s: float, text: str) -> None:
    assert words.rate(per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0 s"), (0.4, "0 s"), (59.0, "59 s"), (60.0, "1:00"), (185.0, "3:05"),
     (3599.7, "1:00:00"), (7800.0, "2:10:00"), (90061.0, "25:01:01")],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


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
    assert words.memory(size_bytes) == text


def test_name_of_a_metric_cannot_leave_its_line() -> None:
    assert words.metrics({"a\nb\x1b[2J": 1.0}) == ["a b [2J: 1.0000"]


def test_wide_letters_take_two_columns() -> None:
    assert [words.columns(text) for text in ("", "loss", "損失", "é")] == [0, 4, 4, 1]


def test_metrics_begin_with_the_loss() -> None:
    assert words.metrics({"accuracy": 0.9, "loss": 0.31}, "val_") == [
        "val_loss: 0.3100",
        "val_accuracy: 0.9000",
    ]
