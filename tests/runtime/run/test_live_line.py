"""The live line: its words on a narrow terminal, the picture behind them, and the pace."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run.live_line import (
    GAP,
    Pace,
    Part,
    Picture,
    fitting,
    live_line,
    next_save_of,
)
from holdfast.runtime.run.progress import LaunchReport, StepReport
from holdfast.runtime.run.progress import columns as width_of

REPORT = StepReport(
    now=100.0, step=151, steps=600, epoch=3, epochs=10, step_of_epoch=31, steps_per_epoch=60,
    metrics={"accuracy": 0.91, "loss": 0.31}, next_save_step=200,
)  # fmt: skip
SEEN = LaunchReport(REPORT, 4, "training")
EARLIER = LaunchReport(dataclasses.replace(REPORT, now=99.0, step=141))
BAR = 20 * " "
WORD = StepReport(
    now=10.0, step=20, steps=120, epoch=1, epochs=6, step_of_epoch=20, steps_per_epoch=20,
    metrics={"loss": 0.5},
)  # fmt: skip
TF = Picture(imports="TensorFlow")
BEFORE = dataclasses.replace(WORD, now=5.0, step=10)
_PARTS = st.lists(st.builds(Part, st.text("ab損", max_size=9), st.integers(0, 9)), max_size=8)


def picture(**changes: Any) -> Picture:
    return Picture().launched(4).seen(EARLIER).seen(dataclasses.replace(SEEN, **changes))


def words_of(shown: Picture, columns: int = 200) -> str:
    return GAP.join(part.text for part in live_line(shown, 100.0, columns))


def test_line_tells_everything_where_it_fits() -> None:
    assert words_of(picture()) == (
        f"epoch 3/10  {BAR}  31/60  10.0 steps/s   45 s left  loss: 0.3100   accuracy: 0.9100 "
        "  4 workers  save at step 200"
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (119, f"epoch 3/10  {BAR}  31/60  10.0 steps/s   45 s left  loss: 0.3100 "
              "  accuracy: 0.9100   4 workers"),
        (79, f"epoch 3/10  {BAR[:10]}  31/60  10.0 steps/s   45 s left  loss: 0.3100 "),
        (60, f"epoch 3/10  {BAR[:10]}  31/60  10.0 steps/s  loss: 0.3100 "),
        (33, "epoch 3/10  31/60  loss: 0.3100 "),
        (10, "epoch 3/10"),
        (5, "epoch"),
        (0, ""),
    ],
)  # fmt: skip
def test_narrow_terminal_keeps_what_matters_most(columns: int, words: str) -> None:
    assert words_of(picture(), columns) == words
    assert len(words) <= columns


@pytest.mark.parametrize(
    ("shown", "columns", "words"),
    [
        (
            picture().launched(3).seen(LaunchReport(None, 3, "joining")),
            200,
            r"epoch 3/10 .* joining .* loss: 0\.3100 .* 3 workers ",
        ),
        (
            picture(progress=dataclasses.replace(REPORT, stage=2)),
            200,
            "fit 2  epoch 3/10",
        ),
        (picture(), 80, "((?!workers).)*$"),
        (picture(living=3), 80, ".*3 of 4 workers"),
        (picture(phase="saving"), 200, ".*  saving  "),
        (picture(phase="concluding"), 200, ".*  script after training  "),
        (picture(phase=None), 200, r".*  10\.0 steps/s  "),
        (Picture().launched(1), 200, "starting  0 of 1 worker$"),
        (Picture().launched(4).seen(LaunchReport(None, 4, "joining")), 200, "joining  4 workers$"),
        (Picture(), 200, "starting  0 workers$"),
        (TF.launched(2), 200, "importing TensorFlow  0 of 2 workers$"),
        (TF.launched(2).seen(LaunchReport(None, 1, "joining")), 200, "joining  1 of 2 workers$"),
    ],
)
def test_line_tells_what_is_unlike_a_steady_training(
    shown: Picture, columns: int, words: str
) -> None:
    assert re.match(words, words_of(shown, columns))


@pytest.mark.parametrize(
    ("step", "steps", "done"),
    [(0, 60, 0.0), (15, 60, 0.25), (60, 60, 1.0), (70, 60, 1.0), (0, 0, 0.0), (3, 0, 0.0)],
    ids=["begin", "quarter", "end", "beyond", "no step of an unknown number", "unknown"],
)
def test_bar_is_full_at_the_end_of_the_epoch_and_never_more(
    step: int, steps: int, done: float
) -> None:
    report = dataclasses.replace(REPORT, step_of_epoch=step, steps_per_epoch=steps)

    parts = live_line(picture(progress=report), 100.0, 200)

    assert [part.done for part in parts if part.style == "bar"] == [done]


@pytest.mark.parametrize(
    ("shown", "text", "style"),
    [
        (picture(), "4 workers", "quiet"),
        (picture(living=3), "3 of 4 workers", "loss"),
        (picture(living=0), "0 of 4 workers", "loss"),
        (picture(living=1, phase="starting"), "1 of 4 workers", "quiet"),
        (Picture().launched(4), "0 of 4 workers", "quiet"),
    ],
    ids=["all", "one lost", "all lost", "more are starting", "launch"],
)
def test_lost_workers_stand_out_unless_they_only_start(
    shown: Picture, text: str, style: str
) -> None:
    (part,) = (part for part in live_line(shown, 100.0, 200) if "worker" in part.text)

    assert (part.text, part.style) == (text, style)


@pytest.mark.parametrize("columns", [79, 119, 139])
@given(
    step=st.integers(1, 600), pace=st.sampled_from([0.0, 0.4, 3.0, 45.0, 700.0]),
    loss=st.floats(0, 99), phase=st.sampled_from(["training", "saving", None]),
)  # fmt: skip
def test_parts_do_not_come_and_go_while_their_words_change(
    columns: int, step: int, pace: float, loss: float, phase: str | None
) -> None:
    report = dataclasses.replace(
        REPORT,
        step=step,
        step_of_epoch=step % 60,
        metrics={"accuracy": 0.5, "loss": round(loss, 1)},
    )
    shown = dataclasses.replace(picture(progress=report, phase=phase), pace=Pace(pace, step, 100.0))

    texts = [part.text for part in live_line(shown, 100.0, columns)]
    names = [
        name
        for name in ("epoch", "/60", "loss", "accuracy", "worker", "save at")
        if any(name in text for text in texts)
    ]

    wanted = ["epoch", "/60", "loss"]
    wanted += ["accuracy", "worker"] * (columns > 79) + ["save at"] * (columns > 119)
    assert names == wanted
    assert any(text.isspace() and len(text) in (20, 10) for text in texts)


def test_loss_stays_longest_and_metrics_behind_the_third_go_first() -> None:
    metrics = dict.fromkeys(("a", "b", "c", "d", "loss"), 0.5)
    shown = picture(progress=dataclasses.replace(REPORT, metrics=metrics))

    lost = []
    for columns in range(200, 0, -1):
        found = words_of(shown, columns)
        lost += [name for name in metrics if f"{name}: " not in found and name not in lost]

    assert lost == ["d", "c", "b", "a", "loss"]


def test_word_that_is_cut_keeps_its_style_and_nothing_is_made_of_nothing() -> None:
    assert fitting([Part("epoch 1/2", 0, "epoch"), Part("x", 1)], 5) == (Part("epoch", 0, "epoch"),)
    assert fitting([Part("epoch", 0)], -3) == (Part("", 0),)
    assert len(fitting([Part("損失", 0), Part("x", 1)], 7)) == 2
    assert fitting([Part("損失", 0), Part("x", 1)], 6) == (Part("損失", 0),)
    assert fitting([], 10) == ()


@given(_PARTS, st.integers(0, 60))
def test_line_is_as_wide_as_the_terminal_allows(parts: list[Part], columns: int) -> None:
    kept = fitting(parts, columns)

    rest = iter(parts)
    width = width_of(GAP.join(part.text for part in kept))
    assert width <= columns or len(kept) == 1
    assert len(kept) == 1 or all(part in rest for part in kept)
    assert bool(kept) == bool(parts)


def after_report(picture: Picture, report: StepReport | None, **fields: Any) -> Picture:
    return picture.seen(LaunchReport(report, **({"living": 4, "phase": "training"} | fields)))


@pytest.fixture
def training() -> Picture:
    """Two steps a second, on all of four workers."""
    return after_report(after_report(Picture().launched(4), BEFORE), WORD)


def test_reports_make_the_pace_and_it_the_time_that_is_left(training: Picture) -> None:
    assert (training.report, training.pace.per_s) == (WORD, 2.0)
    assert (training.living, training.phase) == (4, "training")
    assert training.left_s == pytest.approx(50.0)
    back = after_report(training.launched(4), dataclasses.replace(WORD, now=30.0, step=16))
    assert (back.pace.per_s, back.left_s) == (2.0, pytest.approx(52.0))
    for changes in ({"step": 120}, {"step": 130}, {"steps": 20}):
        assert after_report(training, dataclasses.replace(WORD, **changes)).left_s is None
    assert Picture().left_s is None
    assert after_report(Picture(), WORD).left_s is None
    phases = ("concluding", "leaving", "training", "failed", None)
    after = [after_report(training, WORD, phase=phase).is_after_training for phase in phases]
    assert after == [True, True, False, False, False]


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
    report = dataclasses.replace(WORD, next_save_step=step, next_save_at=moment)

    assert next_save_of(report, 10.0) == words


@pytest.mark.parametrize(
    ("looks", "per_s"),
    [
        ([], 0.0),
        ([(5, 1.0)], 0.0),
        ([(5, 1.0), (15, 2.0)], 10.0),
        ([(5, 1.0), (5, 2.0), (25, 3.0)], 10.0),
        ([(5, 1.0), (15, 2.0), (15, 2.0)], 10.0),
        ([(5, 1.0), (15, 2.0), (3, 9.0)], 10.0),  # a relaunch: as fast as before, so far
        ([(5, 1.0), (15, 2.0), (3, 9.0), (13, 10.0)], 10.0),
        ([(5, 9.0), (15, 2.0)], 0.0),
        ([(0, 0.0), (10, 1.0), (20, 11.0)], 1.0 + 9.0 / math.e),  # 10 s old: 1/e of a new look
        ([(0, 0.0), (10, 1.0), (10, 6.0), (11, 11.0)], 0.1 + 9.9 / math.e),  # as without the second
        ([(0, 100.0), (10, 101.0), (20, 5.0)], 10.0),  # another boot
    ],
)
def test_pace(looks: list[tuple[int, float]], per_s: float) -> None:
    pace = Pace()
    for step, now in looks:
        pace = pace.observe(step, now)

    assert pace.per_s == pytest.approx(per_s)
