"""The words of the live line, and what a narrow terminal shows of them."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast.runtime.progress.live_line import GAP, Part, fitting, live_line
from holdfast.runtime.progress.picture import Picture
from holdfast.runtime.progress.step_report import StepReport

REPORT = StepReport(
    now=100.0, step=151, steps=600, epoch=3, epochs=10, step_of_epoch=31, steps_per_epoch=60,
    metrics={"accuracy": 0.91, "loss": 0.31}, next_save_step=200,
)  # fmt: skip
SEEN = {"progress": REPORT.to_json(), "workers": 4, "phase": "training"}
EARLIER = {"progress": dataclasses.replace(REPORT, now=99.0, step=141).to_json()}
BAR = 20 * " "


def picture(**changes: object) -> Picture:
    return Picture().launched(4).seen(EARLIER).seen(SEEN | changes)


def words_of(shown: Picture, columns: int = 200) -> str:
    return GAP.join(part.text for part in live_line(shown, 100.0, columns))


def test_line_tells_everything_where_it_fits() -> None:
    assert words_of(picture()) == (
        f"epoch 3/10  {BAR}  31/60  10.0 steps/s  45 s left  loss: 0.3100  accuracy: 0.9100"
        "  4 workers  save at step 200"
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (103, "epoch 3/10  31/60  10.0 steps/s  45 s left  loss: 0.3100  accuracy: 0.9100"
              "  4 workers  save at step 200"),
        (80, "epoch 3/10  31/60  10.0 steps/s  45 s left  loss: 0.3100  accuracy: 0.9100"),
        (60, "epoch 3/10  31/60  10.0 steps/s  45 s left  loss: 0.3100"),
        (33, "epoch 3/10  31/60  loss: 0.3100"),
        (10, "epoch 3/10"),
        (5, "epoch"),
        (0, ""),
    ],
)  # fmt: skip
def test_narrow_terminal_keeps_what_matters_most(columns: int, words: str) -> None:
    assert words_of(picture(), columns) == words
    assert len(words) <= columns


def test_fitting_keeps_the_order_and_loses_the_highest_ranks() -> None:
    parts = [Part("aaaa", 2), Part("bbbb", 0), Part("cccc", 1)]

    assert [part.text for part in fitting(parts, 10)] == ["bbbb", "cccc"]


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (Picture().launched(1), "starting  0 of 1 worker"),
        (Picture().launched(4).seen({"workers": 4, "phase": "joining"}), "joining  4 workers"),
        (Picture(), "starting  0 workers"),
    ],
)
def test_line_before_the_first_step(shown: Picture, words: str) -> None:
    assert words_of(shown) == words


def test_lost_worker_and_another_phase_are_told() -> None:
    words = words_of(picture(workers=3, phase="repairing"))

    assert "31/60  repairing" in words
    assert "3 of 4 workers" in words


def test_relaunch_goes_on_with_the_picture() -> None:
    words = words_of(
        picture().launched(3).seen({"progress": None, "workers": 3, "phase": "joining"})
    )

    assert words.startswith("epoch 3/10")
    assert "joining" in words
    assert "loss: 0.3100" in words
    assert "3 workers" in words


def test_second_training_of_a_script_has_its_number() -> None:
    report = dataclasses.replace(REPORT, stage=2)

    assert words_of(picture(progress=report.to_json())).startswith("fit 2  epoch 3/10")


def test_next_save_is_a_moment_if_a_clock_decides() -> None:
    report = dataclasses.replace(REPORT, next_save_at=140.0)

    assert "save in 40 s" in words_of(picture(progress=report.to_json()))
    assert picture(progress=report.to_json()).next_save(141.0) == "in 0 s"


def test_last_step_has_no_time_left() -> None:
    report = dataclasses.replace(REPORT, step=600)

    assert "left" not in words_of(picture(progress=report.to_json()))
