"""``holdfast report``: its sentences, its width, and its page; test_printed.py has whole runs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import WrittenJournal, line
from told_run import DIGEST, told_lines, told_run

from holdfast.recovery.event import EVENTS, Event, WorkerExited
from holdfast.runtime.commands.page import page_of
from holdfast.runtime.commands.reported_run import describe_failure, describe_troubles, facts_of
from holdfast.runtime.commands.summary import finite
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head.living_job import Life

Holdfast = Callable[..., tuple[int, str, str]]
EVIL = "a<script>alert(1)<img src=x>&amp;.py"


def write_lines(run_dir: Path, *lines: dict[str, Any]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "journal.jsonl").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            WorkerExited(
                2, "silent for 1 s", step=0, phase="training", fenced=True, limit="heartbeat"
            ),
            "worker 2: silent for 1 s after step 0 while training, fenced (heartbeat limit)",
        ),
        (
            WorkerExited(2, "host b was lost: the connection has ended", step=7, limit="host"),
            "worker 2: host b was lost: the connection has ended after step 7",
        ),
    ],
)
def test_death_is_told_with_all_that_is_known(failure: WorkerExited, sentence: str) -> None:
    assert describe_failure(failure) == sentence


@pytest.mark.parametrize(
    ("lines", "life", "words"),
    [
        ([{}], Life.RUNNING, "whole"),
        ([{}], Life.GONE, "whole"),
        ([{}, {"exit_code": 0, "reason": ""}], Life.ENDED, "whole"),
        ([], Life.ENDED, "whole"),
        ([{}], Life.ENDED, "lacks the end of the last job; so the numbers"),
        ([{}, {"lines": 1}], Life.RUNNING, "lacks 1 event that could not be written; so"),
        (
            [{}, {"lines": 3}],
            Life.ENDED,
            "lacks 3 events that could not be written, and the end of the last job; so",
        ),
    ],
)
def test_journal_is_called_whole_only_if_nothing_is_known_to_lack(
    lines: list[dict[str, Any]], life: Life, words: str
) -> None:
    kinds = {"exit_code": "job_ended", "lines": "journal_gap"}
    told = [line(kinds.get(next(iter(one), ""), "job_started"), 1.0, **one) for one in lines]

    assert facts_of(dataclasses.replace(told_run(told), life=life))["journal"].startswith(words)


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats())
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(_VALUES)
def test_any_value_becomes_strict_json(value: object) -> None:
    once = finite(value)

    json.dumps(once, allow_nan=False)
    assert finite(once) == once
    assert finite({"a": (math.nan, 1.5), "b": -math.inf}) == {"a": [None, 1.5], "b": None}


@pytest.mark.parametrize("command", ["status", "report"])
def test_damaged_lines_of_a_journal_are_left_out(
    tmp_path: Path, holdfast: Holdfast, command: str
) -> None:
    write_lines(tmp_path, *told_lines())
    before = holdfast(command, tmp_path, "--json")[1]
    with (tmp_path / "journal.jsonl").open("ab") as journal:
        journal.write(
            b'{"event": "step", "step": 9}\n'
            b'{"event": "memory_differs", "now": 1, "time": 1, "step": 1, "workers": [0]}\n'
            b'{"event": "recovery", "now": 1, "time": 1, "lost": "all"}\n'
            b'{"event": "epoch", "now": "late"}\n\xff\xfe{"torn'
        )

    after = holdfast(command, tmp_path, "--json")[1]

    assert re.sub(r'"age_s".*', "", after) == re.sub(r'"age_s".*', "", before)


def test_metrics_that_do_not_fit_into_the_terminal_are_counted(
    tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    metrics = {f"a metric with number {i}": 0.5 for i in range(9)}
    write_lines(tmp_path, line("epoch", 1.0, epoch=1, step=1, seconds=1.0, metrics=metrics))

    out = holdfast("report", tmp_path)[1]

    assert "┃ a metric with number 1 ┃\n" in out
    assert "7 more columns: see --html or --json" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["status", "report"])
def test_no_line_of_a_terminal_breaks_a_digest_and_a_file_has_it_whole(
    command: str, tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = WrittenJournal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, script="/a/train.py")
    journal.record("job_ended", exit_code=0, reason=f"completed step 9, state sha256 {DIGEST}")
    journal.close()

    monkeypatch.delenv("COLUMNS", raising=False)
    assert f"completed step 9, state sha256 {DIGEST}" in holdfast(command, tmp_path)[1]
    monkeypatch.setenv("COLUMNS", "80")
    out = holdfast(command, tmp_path)[1]

    assert "completed step 9, state sha256 0123456789abcdef…" in " ".join(out.split())
    assert "0123456789abcdef0" not in out


class Reader(HTMLParser):
    """What a browser would show: texts, the names of tags, and what would be loaded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += "" if self.tags[-1:] == ["style"] else f"{data} "


def test_page_loads_and_runs_nothing_and_no_text_of_a_script_is_markup_in_it() -> None:
    lines = told_lines(script=EVIL)
    epoch = next(one for one in lines if one["event"] == "epoch")
    failure = next(one for one in lines if one["event"] == "failure")
    epoch["metrics"], failure["cause"] = {EVIL: 1.0}, EVIL

    page = Reader(page_of(told_run(lines), "now"))

    assert page.text.count(EVIL) >= 4  # the script, its metric in the head and above the plot, ...
    assert page.links == []
    assert {"script", "img", "link"}.isdisjoint(page.tags)


@dataclasses.dataclass(frozen=True)
class SlowStep(Event, sentence="step {step} was slow", listed="notices"):
    step: int


def test_new_event_needs_only_its_class_to_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENTS, "slow_step", SlowStep)

    run = told_run([*told_lines(), line("slow_step", 99.0, step=7)])

    assert describe_troubles(run.report)[-1] == "step 7 was slow"
    assert "step 7 was slow" in Reader(page_of(run, "now")).text


def test_metric_without_a_finite_value_is_not_plotted_and_of_others_the_highest_is_best() -> None:
    lines = [
        line("epoch", 100 + n, epoch=n, step=n, metrics={"accuracy": accuracy, "loss": math.nan})
        for n, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7))
    ]

    page = Reader(page_of(told_run(lines), "now"))

    assert "accuracy 0.7000 0.9000, the highest, in epoch 2" in re.sub(r"\s+", " ", page.text)
    assert "It has no finite value." in page.text
    assert page.tags.count("svg") == 1


def test_long_run_makes_a_small_page() -> None:
    epochs = [
        line("epoch", 101 + i, epoch=i, step=10 * i, metrics={"loss": 1 / i})
        for i in range(1, 2_001)
    ]

    page = page_of(told_run([line("job_started", 100, workers=2), *epochs]), "now")

    assert len(page) < 50_000
    [points] = [one for one in re.findall(r'points="([^"]*)"', page) if one]
    assert len(points.split()) <= 501


def test_page_takes_the_place_of_an_older_one_and_follows_no_link(
    tmp_path: Path, holdfast: Holdfast
) -> None:
    """Another user may have put a link there."""
    write_lines(tmp_path, *told_lines())
    (tmp_path / "victim").write_text("mine")
    page, link = tmp_path / "report.html", tmp_path / "other.html"
    page.write_text("old")
    link.symlink_to(tmp_path / "victim")
    before = os.listdir(tmp_path)

    for path, words in ((page, []), (link, [link])):
        assert holdfast("report", tmp_path, "--html", *words)[1].startswith(f"wrote {path} (")
        assert DIGEST in path.read_text()

    assert (tmp_path / "victim").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == sorted(before)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a-directory", "is a directory"),
        ("pipe", "no regular file"),
        ("nowhere/report.html", "No such file"),
    ],
)
def test_name_that_cannot_be_a_page_is_refused(
    tmp_path: Path, holdfast: Holdfast, name: str, words: str
) -> None:
    write_lines(tmp_path, *told_lines())
    (tmp_path / "a-directory").mkdir()
    os.mkfifo(tmp_path / "pipe")

    code, _, err = holdfast("report", tmp_path, "--html", tmp_path / name)

    assert code == ExitCode.USAGE
    assert words in err
    assert sorted(os.listdir(tmp_path)) == ["a-directory", "journal.jsonl", "pipe"]
