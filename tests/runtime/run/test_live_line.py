"""The words of the live line, and what a narrow terminal shows of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run.live_line import GAP, Part, Picture, fitting, live_line
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.run.progress import columns as width_of

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


def parts_of(shown: Picture, columns: int = 200) -> dict[str, Part]:
    """Return the parts by their style; there is one of each but of metrics."""
    return {part.style: part for part in live_line(shown, 100.0, columns)}


@pytest.mark.parametrize(
    ("step", "steps", "done"),
    [(0, 60, 0.0), (15, 60, 0.25), (60, 60, 1.0), (70, 60, 1.0), (0, 0, 0.0), (3, 0, 0.0)],
    ids=["begin", "quarter", "end", "beyond", "no step of an unknown number", "unknown"],
)
def test_bar_is_full_at_the_end_of_the_epoch_and_never_more(
    step: int, steps: int, done: float
) -> None:
    report = dataclasses.replace(REPORT, step_of_epoch=step, steps_per_epoch=steps)

    assert parts_of(picture(progress=report.to_json()))["bar"].done == done


@pytest.mark.parametrize(
    ("shown", "text", "style"),
    [
        (picture(), "4 workers", "quiet"),
        (picture(workers=3), "3 of 4 workers", "loss"),
        (picture(workers=0), "0 of 4 workers", "loss"),
        (picture(workers=1, phase="starting"), "1 of 4 workers", "quiet"),
        (Picture().launched(4), "0 of 4 workers", "quiet"),
    ],
    ids=["all", "one lost", "all lost", "more are starting", "launch"],
)
def test_lost_workers_stand_out_unless_they_only_start(
    shown: Picture, text: str, style: str
) -> None:
    (part,) = (part for part in live_line(shown, 100.0, 200) if "worker" in part.text)

    assert (part.text, part.style) == (text, style)


def test_lost_worker_is_told_on_a_narrower_terminal_than_all_workers() -> None:
    assert "workers" not in words_of(picture(), 80)
    assert "3 of 4 workers" in words_of(picture(workers=3), 80)


@pytest.mark.parametrize(
    ("phase", "words"),
    [("saving", "saving"), ("concluding", "script after training"), ("training", None)],
)
def test_phase_is_told_unless_it_is_training(phase: str, words: str | None) -> None:
    found = parts_of(picture(phase=phase)).get("phase")

    assert (found and found.text) == words


def test_answer_without_a_phase_is_taken_as_training() -> None:
    assert "phase" not in parts_of(picture(phase=None))


def test_loss_stays_longest_and_metrics_behind_the_third_go_first() -> None:
    metrics = dict.fromkeys(("a", "b", "c", "d", "loss"), 0.5)
    shown = picture(progress=dataclasses.replace(REPORT, metrics=metrics).to_json())

    lost = []
    for columns in range(200, 0, -1):
        found = words_of(shown, columns)
        lost += [name for name in metrics if f"{name}: " not in found and name not in lost]

    assert lost == ["d", "c", "b", "a", "loss"]


def test_name_of_wide_letters_takes_its_columns() -> None:
    parts = [Part("損失", 0), Part("x", 1)]

    assert len(fitting(parts, 7)) == 2
    assert fitting(parts, 6) == (Part("損失", 0),)


def test_word_that_is_cut_keeps_its_style_and_nothing_is_made_of_nothing() -> None:
    assert fitting([Part("epoch 1/2", 0, "epoch"), Part("x", 1)], 5) == (Part("epoch", 0, "epoch"),)
    assert fitting([Part("epoch", 0)], -3) == (Part("", 0),)
    assert fitting([], 10) == ()


_PARTS = st.lists(st.builds(Part, st.text("ab損", max_size=9), st.integers(0, 9)), max_size=8)


@given(_PARTS, st.integers(0, 60))
def test_line_is_as_wide_as_the_terminal_allows(parts: list[Part], columns: int) -> None:
    kept = fitting(parts, columns)

    rest = iter(parts)
    width = width_of(GAP.join(part.text for part in kept))
    assert width <= columns or len(kept) == 1
    assert len(kept) == 1 or all(part in rest for part in kept)
    assert bool(kept) == bool(parts)
