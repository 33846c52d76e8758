"""The page of a run says what happened; a text of the script stays a text; its file is whole."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from journal_entries import line
from told_run import DIGEST, told_lines, told_run

from holdfast.runtime.commands.page import page_of, write_page
from holdfast.runtime.commands.reported_run import ReportedRun
from holdfast.runtime.errors import UsageError

NOW = "2026-01-02 03:04"
EVIL = "a<script>alert(1)<img src=x>&amp;.py"


class Reader(HTMLParser):
    """What a browser would show: texts, the names of tags, and what would be loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def read(run: ReportedRun) -> Reader:
    return Reader(page_of(run, NOW))


def test_page_tells_the_run_in_the_order_of_interest() -> None:
    page = read(told_run())

    facts = (
        "train.py",
        "complete",
        "12 steps in 3 epochs on 3 workers; ",
        "3 deaths of a worker (1 recovered in place, 1 relaunch).",
        "loss",
        "nan",
        "0.5000, the lowest, in epoch 2",
        "val_loss",
        "0.6000, the lowest, in epoch 2",
        "3: every sample exactly once",
        DIGEST,
        "Epochs",
        "Deaths",
        "worker 2: signal SIGKILL after step 4",
        "<b>bad</b>",
        "Where the time went",
        "wall time",
        "30.00 s",
        "3.0 MiB",
    )
    place = 0
    for fact in facts:
        place = page.text.find(fact, place)
        assert place >= 0, fact
    assert page.tags.count("svg") == 1
    assert page.tags.count("polyline") == 2


def test_page_loads_nothing_and_runs_nothing() -> None:
    page = read(told_run())

    assert page.links == []
    assert {"link", "script"}.isdisjoint(page.tags)


def test_text_of_a_script_is_never_markup() -> None:
    lines = told_lines(script=EVIL)
    epoch = next(one for one in lines if one["event"] == "epoch")
    failure = next(one for one in lines if one["event"] == "failure")
    epoch["metrics"], failure["cause"] = {EVIL: 1.0}, EVIL

    page = read(told_run(lines))

    assert page.text.count(EVIL) >= 4  # the script, its metric in the head and above the plot, ...
    assert {"script", "img"}.isdisjoint(page.tags)


@pytest.mark.parametrize(
    ("lines", "sentences"),
    [
        (
            [line("job_started", 100, workers=2)],
            (
                "No epoch has ended yet.",
                "No checkpoint is committed.",
                "No worker has died.",
                "RUN.json is missing",
                "not complete yet",
            ),
        ),
        (
            [line("step", 100, step=1, epoch=1, seconds=0.5, samples=8, generation=1)],
            ("No epoch has ended yet.", "No worker has died."),
        ),
        (
            [line("epoch", 100, epoch=1, step=1, metrics={"loss": float("nan")})],
            ("It has no finite value.",),
        ),
    ],
    ids=["just begun", "a script by itself", "no finite value"],
)
def test_what_a_run_lacks_is_told_and_not_plotted(
    lines: list[dict[str, object]], sentences: tuple[str, ...]
) -> None:
    page = read(told_run(lines))

    assert [sentence for sentence in sentences if sentence not in page.text] == []
    assert "svg" not in page.tags


def test_best_of_other_metrics_is_the_highest() -> None:
    lines = [
        line("epoch", 100 + epoch, epoch=epoch, step=epoch, metrics={"accuracy": accuracy})
        for epoch, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7))
    ]

    page = read(told_run(lines))

    assert "accuracy 0.7000 0.9000, the highest, in epoch 2" in re.sub(r"\s+", " ", page.text)


def test_long_run_makes_a_small_page() -> None:
    epochs = [
        line("epoch", 101 + i, epoch=i, step=10 * i, metrics={"loss": 1 / i})
        for i in range(1, 2_001)
    ]

    page = page_of(told_run([line("job_started", 100, workers=2), *epochs]), NOW)

    assert len(page) < 50_000
    [points] = [one for one in re.findall(r'points="([^"]*)"', page) if one]
    assert len(points.split()) <= 501


def test_page_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    write_page(path, "new")

    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["report.html"]


def test_link_that_another_user_has_put_there_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "report.html"
    victim.write_text("mine")
    path.symlink_to(victim)

    write_page(path, "new")

    assert victim.read_text() == "mine"
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a-directory", "is a directory"),
        ("pipe", "no regular file"),
        ("nowhere/report.html", "No such file"),
    ],
)
def test_name_that_cannot_be_a_page_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "a-directory").mkdir()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match=words):
        write_page(tmp_path / name, "new")

    assert sorted(os.listdir(tmp_path)) == ["a-directory", "pipe"]
