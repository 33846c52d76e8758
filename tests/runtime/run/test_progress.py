"""What a worker tells of its progress, what its agent makes of it, and how people read it."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run import progress
from holdfast.runtime.run.progress import (
    StepReport,
    is_metrics,
)
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import MOST_PROGRESS_BYTES

REPORT = StepReport(
    now=9.5, step=31, steps=600, epoch=1, epochs=10, step_of_epoch=31, steps_per_epoch=60,
    metrics={"loss": 0.5, "accuracy": math.nan}, next_save_step=100,
)  # fmt: skip


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
        (1e7, "1.0000e+07"),
        (9999999.0, "9999999.0000"),
        (-1e-3, "-1.0000e-03"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert progress.number(value) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0.2, "5.0 s/step"), (0.99, "1.0 s/step"), (1.0, "1.0 steps/s"), (12.34, "12.3 steps/s"),
     (99.9, "99.9 steps/s"), (100.0, "100 steps/s"), (812.6, "813 steps/s")],
)  # fmt: skip
def test_rate(per_s: float, text: str) -> None:
    assert progress.rate(per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (119.6, "2:00"), (185.0, "3:05"),
     (3599.4, "59:59"), (3599.7, "1:00:00"), (7800.0, "2:10:00"), (90061.0, "25:01:01")],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (1023 << 20, "1023 MiB"),
        (1 << 30, "1.0 GiB"),
        (326 << 20, "326 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 52, "4.0 PiB"),
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


@given(st.floats(-1e6, 1e6))
def test_duration_reads_back_as_the_nearest_second(seconds: float) -> None:
    text = progress.duration(seconds)

    parts = [int(part) for part in text.removesuffix(" s").split(":")]
    total = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    assert abs(total - max(0.0, seconds)) <= 0.5
    assert all(part < 60 for part in parts[1:])
    assert (" s" in text) == (total < 60)


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


def test_metrics_keep_their_order_behind_the_loss() -> None:
    values = {"b": 1.0, "val_loss": 2.0, "loss": 3.0, "a": 4.0}

    assert [text.partition(":")[0] for text in progress.metrics(values)] == [
        "loss", "b", "val_loss", "a",
    ]  # fmt: skip


def test_report_comes_back_as_it_was_told() -> None:
    found = StepReport.decode(REPORT.encode())

    assert found is not None
    assert math.isnan(found.metrics["accuracy"])
    assert dataclasses.replace(found, metrics=REPORT.metrics) == REPORT


def test_report_with_too_many_metrics_keeps_the_loss() -> None:
    metrics = {"loss": 0.5} | {f"a metric with a long name {i}": float(i) for i in range(1000)}

    content = dataclasses.replace(REPORT, metrics=metrics).encode()

    found = StepReport.decode(content)
    assert len(content) <= MOST_PROGRESS_BYTES
    assert found is not None
    assert found.metrics["loss"] == 0.5
    assert len(found.metrics) > 10


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1}, {"step": None}, {"step": 1.5}, {"step": True}, {"metrics": [1]},
        {"metrics": {"loss": "low"}}, {"now": "late"}, {"now": math.inf}, {"next_save_at": "soon"},
    ],
)  # fmt: skip
def test_report_that_makes_no_sense_is_none(change: dict[str, object]) -> None:
    fields = to_plain(REPORT) | change

    assert StepReport.decode(json.dumps(fields).encode()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", REPORT.encode()[:-9]])
def test_page_that_is_empty_or_torn_is_no_report(content: bytes) -> None:
    assert StepReport.decode(content) is None


def test_report_without_a_next_save_is_one() -> None:
    fields = to_plain(REPORT)
    del fields["next_save_step"], fields["next_save_at"]

    assert StepReport.of(fields) == dataclasses.replace(REPORT, next_save_step=None)


def test_report_of_an_older_holdfast_is_of_the_first_training_and_live() -> None:
    fields = to_plain(REPORT)
    del fields["stage"], fields["verbose"]

    found = StepReport.of(fields)

    assert found is not None
    assert (found.stage, found.verbose) == (1, 1)


@pytest.mark.parametrize(
    "name", ["now", "step", "steps", "epoch", "epochs", "step_of_epoch", "steps_per_epoch"]
)
def test_report_without_a_number_that_people_look_at_is_none(name: str) -> None:
    fields = to_plain(REPORT)
    del fields[name]

    assert StepReport.of(fields) is None


def test_field_of_a_later_holdfast_is_left_out() -> None:
    assert StepReport.of(to_plain(REPORT) | {"colour": "blue"}) == REPORT


@pytest.mark.parametrize("fields", [None, [], "report", 7], ids=repr)
def test_report_is_an_object(fields: object) -> None:
    assert StepReport.of(fields) is None


def test_metrics_that_do_not_fit_are_halved_from_the_end() -> None:
    metrics = {"loss": 0.5} | {f"{i:04}" * 20: float(i) for i in range(99)}

    found = StepReport.decode(dataclasses.replace(REPORT, metrics=metrics).encode())

    assert found is not None
    assert list(found.metrics) == list(metrics)[: len(found.metrics)]
    assert len(found.metrics) == 25


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ({}, True), ({"loss": 1}, True), ({"loss": math.inf}, True), ({"loss": None}, False),
        ({1: 0.5}, False), ({"loss": [0.5]}, False), (None, False), ([("loss", 0.5)], False),
    ],
    ids=repr,
)  # fmt: skip
def test_metrics_are_numbers_by_name(value: object, *, is_one: bool) -> None:
    assert is_metrics(value) is is_one
