"""What a worker tells of its progress, what its agent makes of it, and how people read it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.runtime.run import progress
from holdfast.runtime.run.progress import (
    StepReport,
)
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import MOST_PROGRESS_BYTES

REPORT = StepReport(
    now=9.5, step=31, steps=600, epoch=1, epochs=10, step_of_epoch=31, steps_per_epoch=60,
    metrics={"loss": 0.5, "accuracy": math.nan}, next_save_step=100,
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (
            progress.number,
            {0.31: "0.3100", -2.5: "-2.5000", 0.0: "0.0000", 0.001: "1.0000e-03",
             -1e-3: "-1.0000e-03", 9.8585e-4: "9.8585e-04", 123456.0: "123456.0000",
             1e12: "1.0000e+12", 1e7: "1.0000e+07", 9999999.0: "9999999.0000",
             math.nan: "nan", -math.inf: "-inf"},
        ),
        (
            progress.rate,
            {0.2: "5.0 s/step", 0.99: "1.0 s/step", 1.0: "1.0 steps/s", 12.34: "12.3 steps/s",
             99.9: "99.9 steps/s", 100.0: "100 steps/s", 812.6: "813 steps/s"},
        ),
        (
            progress.duration,
            {-3.0: "0 s", 0.4: "0 s", 59.4: "59 s", 59.6: "1:00", 119.6: "2:00", 185.0: "3:05",
             3599.4: "59:59", 3599.7: "1:00:00", 7800.0: "2:10:00", 90061.0: "25:01:01"},
        ),
        (
            progress.memory,
            {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 1023 << 20: "1023 MiB",
             1 << 30: "1.0 GiB", 326 << 20: "326 MiB", 3 << 29: "1.5 GiB", 1 << 52: "4.0 PiB"},
        ),
        (
            progress.phase,
            {"concluding": "script after training", "training": "training", "of later": "of later"},
        ),
        (lambda many: progress.count(many, "worker"), {0: "0 workers", 1: "1 worker"}),
        (lambda many: progress.count(many, "copy", "copies"), {1: "1 copy", 3: "3 copies"}),
        (progress.columns, {"": 0, "loss": 4, "損失": 4, "é": 1}),
    ],
)  # fmt: skip
def test_number_as_people_read_it(
    words: Callable[[Any], object], values: dict[object, object]
) -> None:
    assert {value: words(value) for value in values} == values


def test_report_comes_back_as_it_was_told() -> None:
    found = StepReport.decode(REPORT.encode())

    assert found is not None
    assert math.isnan(found.metrics["accuracy"])
    assert dataclasses.replace(found, metrics=REPORT.metrics) == REPORT


@pytest.mark.parametrize(
    "change",
    [
        *({"step": odd} for odd in (-1, None, 1.5, True)),
        *({"now": odd} for odd in ("late", math.inf)),
        *({name: None} for name in ("steps", "epoch", "epochs", "step_of_epoch")),
        {"steps_per_epoch": None},
        {"metrics": [1]}, {"metrics": {"loss": "low"}}, {"next_save_at": "soon"},
    ],
)  # fmt: skip
def test_report_that_makes_no_sense_is_none(change: dict[str, object]) -> None:
    fields = to_plain(REPORT) | change

    assert StepReport.decode(json.dumps(fields).encode()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"7", b"\xff\xfe", REPORT.encode()[:-9]])
def test_page_that_is_empty_or_torn_is_no_report(content: bytes) -> None:
    assert StepReport.decode(content) is None


def test_fields_that_a_report_may_lack_or_have_beside_its_own() -> None:
    fields = to_plain(REPORT)
    for name in ("stage", "verbose", "next_save_step", "next_save_at"):
        del fields[name]

    found = StepReport.decode(json.dumps(fields | {"colour": "blue"}).encode())

    assert found is not None
    assert dataclasses.replace(found, metrics=REPORT.metrics) == dataclasses.replace(
        REPORT, next_save_step=None
    )
    assert (REPORT.stage, REPORT.verbose) == (1, 1)


def test_metrics_that_do_not_fit_are_halved_from_the_end() -> None:
    metrics = {"loss": 0.5} | {f"{i:04}" * 20: float(i) for i in range(99)}

    content = dataclasses.replace(REPORT, metrics=metrics).encode()

    found = StepReport.decode(content)
    assert found is not None
    assert len(content) <= MOST_PROGRESS_BYTES
    assert list(found.metrics) == list(metrics)[:25]
