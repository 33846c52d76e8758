"""The picture of a run: what each message changes in it, and what it leaves as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast.runtime.run.live_line import Picture, next_save_of
from holdfast.runtime.run.progress import StepReport

REPORT = StepReport(
    now=10.0, step=20, steps=120, epoch=1, epochs=6, step_of_epoch=20, steps_per_epoch=20,
    metrics={"loss": 0.5},
)  # fmt: skip
BEFORE = dataclasses.replace(REPORT, now=5.0, step=10)


def seen(picture: Picture, report: StepReport | None, **fields: Any) -> Picture:
    progress = None if report is None else report.to_json()
    return picture.seen({"progress": progress, "workers": 4, "phase": "training"} | fields)


@pytest.fixture
def training() -> Picture:
    """Two steps a second, on all of four workers."""
    return seen(seen(Picture().launched(4), BEFORE), REPORT)


def test_reports_of_the_first_worker_make_the_pace(training: Picture) -> None:
    assert (training.report, training.pace.per_s) == (REPORT, 2.0)
    assert (training.living, training.phase) == (4, "training")


def test_time_that_is_left_is_that_of_the_steps_that_are_left(training: Picture) -> None:
    assert training.left_s == pytest.approx(50.0)


@pytest.mark.parametrize(
    "changes", [{"step": 120}, {"step": 130}, {"steps": 20}], ids=["end", "beyond", "fewer steps"]
)
def test_training_without_steps_left_has_no_time_left(
    changes: dict[str, Any], training: Picture
) -> None:
    assert seen(training, dataclasses.replace(REPORT, **changes)).left_s is None


def test_time_that_is_left_is_unknown_before_the_second_look() -> None:
    assert Picture().left_s is None
    assert seen(Picture(), REPORT).left_s is None


@pytest.mark.parametrize("progress", [None, {}, "torn", {**REPORT.to_json(), "step": -1}], ids=repr)
def test_word_that_makes_no_sense_leaves_the_last_one(progress: object, training: Picture) -> None:
    found = training.seen({"progress": progress, "workers": 3, "phase": "repairing"})

    assert (found.report, found.pace) == (REPORT, training.pace)
    assert (found.living, found.phase) == (3, "repairing")


def test_word_without_a_count_leaves_the_workers(training: Picture) -> None:
    assert training.seen({"phase": "saving"}).living == 4
    assert training.seen({"phase": "saving", "progress": REPORT.to_json()}).living == 4


def test_relaunch_keeps_what_is_known_and_counts_its_workers_anew(training: Picture) -> None:
    saved = training.saved(16, 9.0)

    again = saved.launched(3)

    assert again == dataclasses.replace(saved, wanted=3, living=0, phase="starting")
    assert (again.report, again.saved_step, again.saved_at) == (REPORT, 16, 9.0)


def test_step_back_after_a_relaunch_keeps_the_pace(training: Picture) -> None:
    back = dataclasses.replace(REPORT, now=30.0, step=16)

    found = seen(training.launched(4), back)

    assert found.pace.per_s == 2.0
    assert found.left_s == pytest.approx(52.0)


@pytest.mark.parametrize(
    ("phase", "is_after"),
    [
        ("concluding", True),
        ("leaving", True),
        ("training", False),
        ("failed", False),
        (None, False),
    ],
)
def test_script_after_its_training_is_known_by_its_phase(
    phase: str | None, training: Picture, *, is_after: bool
) -> None:
    assert seen(training, REPORT, phase=phase).is_after_training is is_after


@pytest.mark.parametrize(
    ("step", "moment", "words"),
    [
        (None, None, None),
        (0, None, "at step 0"),
        (200, None, "at step 200"),
        (None, 100.0, "in 1:30"),
        (200, 100.0, "in 1:30"),
        (None, 5.0, "in 0 s"),
        (None, 0.0, "in 0 s"),
    ],
    ids=["unknown", "first step", "step", "moment", "both", "overdue", "at the clock's begin"],
)
def test_next_save_is_told_by_its_moment_before_its_step(
    step: int | None, moment: float | None, words: str | None
) -> None:
    report = dataclasses.replace(REPORT, next_save_step=step, next_save_at=moment)

    assert next_save_of(report, 10.0) == words
    assert seen(Picture(), report).next_save(10.0) == words


def test_run_without_a_word_knows_no_next_save() -> None:
    assert Picture().launched(4).next_save(10.0) is None
