"""The page of a run says what happened; a text of the script stays a text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from journal_entries import line
from told_run import DIGEST, told_lines, told_run

from holdfast.runtime.page.run_page import compared_page_of, page_of
from holdfast.runtime.tools.comparison import compare
from holdfast.runtime.tools.reported_run import ReportedRun

pytest.importorskip("plotly")
NOW = "2026-01-02 03:04"
EVIL = "a<script>alert(1)<img src=x>&amp;.py"


class Reader(HTMLParser):
    """What a browser would show: texts, the names of tags, and the data of each plot."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.plots: list[dict[str, object]] = []
        self.links: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        kinds = dict(attrs)
        self._inside = f"{tag} {kinds.get('type', '')}".strip()
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._inside == "script application/json":
            self.plots.append(json.loads(data))
        elif not self._inside.startswith(("script", "style")):
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

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
        "Loss and metrics",
        "Speed and workers",
        "Where the time went",
        "wall time",
        "30.00 s",
        "3.0 MiB",
        "18.8%",
        "worker 2: signal SIGKILL after step 4",
        "<b>bad</b>",
        "relaunched 3 workers: all workers died",
        DIGEST,
        "3: every sample exactly once",
    )
    place = 0
    for fact in facts:
        place = page.text.find(fact, place)
        assert place >= 0, fact
    assert len(page.plots) == 6  # the loss, speed, recoveries, relaunches, saves, memory


def test_page_loads_nothing() -> None:
    page = read(told_run())

    assert page.links == []
    assert "link" not in page.tags


def test_text_of_a_script_is_never_markup() -> None:
    lines = told_lines(script=EVIL)
    lines[7]["metrics"] = {EVIL: 1.0}
    lines[8]["cause"] = EVIL
    calm, page = read(told_run()), read(told_run([{**one} for one in lines]))

    assert EVIL in page.text
    assert page.tags.count("script") == calm.tags.count("script")


@pytest.mark.parametrize(
    ("lines", "sentences"),
    [
        (
            [line("job_started", 100, workers=2)],
            (
                "No epoch has ended yet.",
                "No step is applied yet.",
                "No checkpoint is committed.",
                "The journal has no figures of memory.",
                "No worker has died.",
                "RUN.json is missing",
                "not complete yet",
            ),
        ),
        (
            [line("step", 100, step=1, epoch=1, seconds=0.5, samples=8, generation=1)],
            ("No epoch has ended yet.", "No worker has died."),
        ),
    ],
    ids=["just begun", "a script by itself"],
)
def test_what_a_run_lacks_is_told_and_not_plotted(
    lines: list[dict[str, object]], sentences: tuple[str, ...]
) -> None:
    page = read(told_run(lines))

    assert [sentence for sentence in sentences if sentence not in page.text] == []
    assert len(page.plots) <= 1


def test_long_run_makes_a_small_page() -> None:
    steps = [
        line("step", 101 + i / 10, step=i, epoch=i // 10, seconds=0.1, samples=8, generation=1)
        for i in range(1, 20_001)
    ]
    epochs = [
        line("epoch", 101 + i, epoch=i, step=10 * i, metrics={"loss": 1 / i})
        for i in range(1, 2_001)
    ]
    saves = [
        line("checkpoint", 101.05 + i, step=10 * i, seconds=0.2, bytes=100, generation=1)
        for i in range(1, 2_001)
    ]
    lines = sorted([*steps, *epochs, *saves], key=lambda one: one["now"])
    started = [line("job_started", 100, workers=2), line("launch", 100)]

    page = page_of(told_run([*started, *lines]), NOW)

    assert len(page) < 7_000_000
    [loss, *_] = re.findall(r'"application/json">(.*?)</script>', page)
    drawn = json.loads(loss)["data"][0]
    assert len(drawn["x"]) <= 1000
    assert (drawn["x"][0], drawn["x"][-1], max(drawn["y"])) == (1, 2000, 1.0)


def test_two_runs_stand_side_by_side() -> None:
    one, other = told_run(), told_run(told_lines(script=EVIL, spares=1))

    page = Reader(compared_page_of(one, other, compare(one, other), NOW))

    place = 0
    for fact in ("train.py and", EVIL, "state sha256", DIGEST, "spares", "Deaths of B", "<b>bad"):
        place = page.text.find(fact, place)
        assert place >= 0, fact
    assert len(page.plots) == 3
    names = [trace["name"] for trace in page.plots[0]["data"]]  # type: ignore[attr-defined]
    assert names == ["A, training", "A, validation", "B, training", "B, validation"]
    assert page.tags.count("script") == 3 + 2


def test_runs_without_a_step_are_compared_without_a_plot() -> None:
    one = told_run([line("job_started", 100, workers=2)])

    page = Reader(compared_page_of(one, one, compare(one, one), NOW))

    assert page.plots == []
    assert "Options and numerics are the same." in page.text
