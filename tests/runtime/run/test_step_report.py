"""What a worker tells of its progress, and what is made of a page that makes no sense."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator

import pytest

from holdfast.runtime.run.progress import (
    StepReport,
    is_metrics,
    newest_of,
    short_report,
    slowest_phase,
)
from holdfast.runtime.system.heartbeat import MOST_PROGRESS_BYTES, HeartbeatPage, Phase

REPORT = StepReport(
    now=9.5, step=31, steps=600, epoch=1, epochs=10, step_of_epoch=31, steps_per_epoch=60,
    metrics={"loss": 0.5, "accuracy": math.nan}, next_save_step=100,
)  # fmt: skip


@dataclasses.dataclass
class Hosted:
    worker: int
    page: HeartbeatPage
    pid: int | None = 4711


@pytest.fixture
def hosted() -> Iterator[list[Hosted]]:
    hosted = [Hosted(worker, HeartbeatPage.create()) for worker in range(3)]
    yield hosted
    for one in hosted:
        one.page.close()


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
    fields = REPORT.to_json() | change

    assert StepReport.decode(json.dumps(fields).encode()) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", REPORT.encode()[:-9]])
def test_page_that_is_empty_or_torn_is_no_report(content: bytes) -> None:
    assert StepReport.decode(content) is None


def test_report_without_a_next_save_is_one() -> None:
    fields = REPORT.to_json()
    del fields["next_save_step"], fields["next_save_at"]

    assert StepReport.of(fields) == dataclasses.replace(REPORT, next_save_step=None)


def test_newest_word_counts_whoever_has_written_it(hosted: list[Hosted]) -> None:
    assert newest_of(one.page for one in hosted) is None

    hosted[0].page.tell_progress(REPORT.encode())
    hosted[2].page.tell_progress(dataclasses.replace(REPORT, now=10.0, step=40).encode())
    hosted[1].page.tell_progress(b"{}")

    newest = newest_of(one.page for one in hosted)
    assert newest is not None
    assert newest.step == 40


def test_short_report_counts_the_workers_that_have_a_process(hosted: list[Hosted]) -> None:
    hosted[1].pid = None
    for one, phase in zip(hosted, (Phase.SAVING, Phase.TRAINING, Phase.SAVING), strict=True):
        one.page.phase = phase

    report = short_report(hosted)

    assert report == {"progress": None, "workers": 2, "phase": "training"}
    assert slowest_phase([]) is None


def test_script_that_goes_on_after_its_training_is_behind_one_that_leaves(
    hosted: list[Hosted],
) -> None:
    for one, phase in zip(hosted, (Phase.LEAVING, Phase.CONCLUDING, Phase.LEAVING), strict=True):
        one.page.phase = phase

    assert slowest_phase(hosted) == "concluding"


def test_report_of_an_older_holdfast_is_of_the_first_training_and_live() -> None:
    fields = REPORT.to_json()
    del fields["stage"], fields["verbose"]

    found = StepReport.of(fields)

    assert found is not None
    assert (found.stage, found.verbose) == (1, 1)


@pytest.mark.parametrize(
    "name", ["now", "step", "steps", "epoch", "epochs", "step_of_epoch", "steps_per_epoch"]
)
def test_report_without_a_number_that_people_look_at_is_none(name: str) -> None:
    fields = REPORT.to_json()
    del fields[name]

    assert StepReport.of(fields) is None


def test_field_of_a_later_holdfast_is_left_out() -> None:
    assert StepReport.of(REPORT.to_json() | {"colour": "blue"}) == REPORT


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
