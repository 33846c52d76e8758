"""What commands print of whole runs, in full: each run has a file beside this one, printed/RUN.txt.

Who means to change what is printed removes the file, runs this test, which writes it anew and
fails, and reads the difference.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_head import head_of
from journal_entries import line
from told_run import told_lines
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.head.visits import HeadStatus
from holdfast.runtime.run.progress import LaunchReport, StepReport, WorkerReport
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

Holdfast = Callable[..., tuple[int, str, str]]
Lines = list[dict[str, Any]]
PRINTED = Path(__file__).parent / "printed"
NOW = 1e9 + 140.0


def troubled_lines() -> Lines:
    """Return a journal of two jobs with all kinds of trouble, on two hosts; the second goes on."""
    samples = {"step": 8, "microbatch": 1, "count": 30, "ids": [*range(25)], "is_validation": False}
    seen = {"stacks": "  main thread:\n    contribute (/home/ann/train.py:42)", "limit": "stall"}
    death = {"cause": "fenced after 9 s", "fenced": True, "step": 7, "host": "b", **seen}
    cause = "ValueError: [red]no[/red] token [/INST] in list[int]"
    begin = {"workers": 2, "spares": 1, "hosts": ["a:1", "b:1"], "options": ["save-every 10min"]}
    lines = [
        line("job_started", 100, script="/home/ann/train.py", argv=["--lr", "1"], **begin),
        line("launch", 100.5, workers=[0, 1]),
        line("output_dropped", 101, lines=3),
    ]
    for epoch in range(1, 25):
        fields = {"step": epoch, "epoch": epoch, "generation": 1}
        lines.append(line("step", 101 + epoch, seconds=0.5, samples=8, **fields))
        figures = {"metrics": {"[x]": 2.0, "loss": 1 / epoch}, "validation": {"loss": 0.5}}
        exact = {"ledger": {"samples": 8, "exact": epoch != 7}, "seconds": 1.0}
        lines.append(line("epoch", 101 + epoch, **exact, **fields, **figures))
    place = {"where": "contribute (train.py:42)", **seen}
    return [
        *lines,
        line("fault", 131.5, worker=1, step=25, site="vote", kind="stop"),
        line("suspected", 132, worker=1, seconds=300.1, step=24, **place),
        line("failure", 132.5, worker=1, samples=samples, stderr=["[red]odd[/red]"], **death),
        line("failure", 132.6, worker=0, cause=cause, step=24, phase="training", host="a"),
        line("failure", 132.7, worker=2, cause="fenced after 4 s", host="b", traceback="T:\n  x"),
        line("relaunch", 133, reason=f"relaunch: {cause}", spent=1, workers=[2, 3]),
        line("restored", 134, step=22, generation=2),
        line("checkpoint_skipped", 134, step=23),
        line("checkpoint_failed", 134.1, step=23, reason="disk full"),
        line("checkpoint_failed", 134.2, step=23, reason="disk gone"),
        line("rejected", 134.3, step=21, reason=cause),
        line("unreadable", 134.4, step=20, reason="stale", path="/r", error="E", seconds=180),
        line("memory_differs", 134.5, step=5, workers=[0, 2], has_majority=False),
        line("pressure", 134.6, resource="open files", text="980 of 1024 open files are in use"),
        line("journal_gap", 134.7, lines=2),
        line("paused", 135, seconds=0.4, until=134.9),
        line("job_ended", 136, exit_code=75, reason="stopped at step 22"),
        line("job_started", 10, script="/home/ann/train.py", argv=[], workers=2),
        line("launch", 10.5, workers=[0, 1]),
        line("failure", 11.5, worker=2, cause="exit 1"),
        line("step", 12, step=23, epoch=23, seconds=0.5, samples=8, generation=1),
    ]


def worker(number: int, **spent_s: float) -> WorkerReport:
    standing_s, where = 12.0 if number else None, "contribute (train.py:42)"
    return WorkerReport(
        number, 7, "training", 9, 1, 300 << 20, 0.25, standing_s, where, f"n{number}", spent_s
    )


PROGRESS = StepReport(
    109.0, 9, 60, 1, 6, 9, 10, metrics={"f1": 1.0, "loss": 0.5}, next_save_step=20
)
WORKERS = (worker(0, wait=6.0, compute=4.0), worker(1, read=9.0, wait=1.0))
SEEN = LaunchReport(PROGRESS, 2, "training", WORKERS)
ANSWER = HeadStatus(110.0, 4_194_306, 4_194_305, "run", 2, SEEN)
LIVING = [
    *told_lines()[:2],
    *(line("step", 105 + n, step=n, epoch=1, seconds=0.5, samples=8) for n in range(1, 9)),
    line("checkpoint", 113, step=8, seconds=0.25, bytes=3 << 20, generation=1),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory, at a moment and in a time zone that do not change."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield tmp_path
    monkeypatch.undo()
    time.tzset()


def write_journal(run: str, lines: Lines) -> None:
    Path(run).mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    Path(run, "journal.jsonl").write_text(text, encoding="utf-8")
    record = RunRecord("r1", FORMAT, 1.0, 2, 0, 1, numerics={"cpu": "x86"})
    RunDirectory(Path(run)).create_record(record)


def compare(name: str, pieces: list[tuple[str, tuple[int, str, str]]], place: Path) -> None:
    text = ""
    for command, (code, out, err) in pieces:
        text += f"$ holdfast {command}\n{err}{out}"
        text += f"[exit code {code}]\n\n" if code else "\n"
    text = re.sub(r"[ \t]+$", "", text.replace(str(place), "/tmp"), flags=re.MULTILINE)
    if name != "told":  # the others still go on
        text = re.sub(r"(goodput +)[\d.]+% of \d.*", r"\1…", text)
    text = re.sub(r"(\.bad-\d+-g\d+-a)\w+", r"\1…", text)
    path = PRINTED / f"{name}.txt"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} is written anew: read it")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("told", told_lines()),
        ("troubled", troubled_lines()),
        ("begun", [line("job_started", 100, workers=2)]),
    ],
)
def test_run_without_a_job(name: str, lines: Lines, place: Path, holdfast: Holdfast) -> None:
    write_journal("run", lines)
    commands = ["status", "report", "report --json", "report --html", "list"]
    commands += ["status --json", "list --json"] if name == "told" else []
    printed = [(command, holdfast(*command.split())) for command in commands]
    page = Path("run", "report.html").read_text(encoding="utf-8").partition("<body>")[2]
    page = re.sub(r", as of [^<]*", ", as of now", page).replace("><", ">\n<")

    compare(name, [*printed, ("report --html: the page", (0, page, ""))], place)


def test_living_run(place: Path, holdfast: Holdfast) -> None:
    write_journal("run", LIVING)

    with head_of(RunDirectory(place / "run"), lambda _: [ANSWER]):
        printed = [(command, holdfast(*command.split())) for command in ("status", "list")]

    compare("living", printed, place)


def test_checkpoints(run_dir: Path, place: Path, holdfast: Holdfast) -> None:
    """Of whole steps, of one in a run of its own, and of damaged ones, which a copy mends."""
    epoch = {"number": 2, "step": 24, "metrics": {"accuracy": 0.75, "loss": 0.5}}
    cursor = {"epoch": epoch, "random": list(range(9)), "best": None, "nested": {"a/b": 0.5}}
    state = {"[bold]/[/red]": np.zeros(3), "weights/dense/bias": np.full(7, np.nan, np.float32)}
    save(CheckpointStore(place / "other"), state, header=Header("x", 1, 27), cursor=cursor)
    shutil.copytree(run_dir, place / "copy")
    (place / "run/checkpoints/.bad-000000000002-g1-a1").mkdir()
    (place / "run/checkpoints/notes.txt").touch()
    commands = [
        *("inspect run", "inspect run --step 4 --full", "inspect run --json", "verify run"),
        *("verify run --step 4", "inspect other --json", "inspect run --diff 6 other --json"),
        *("inspect run --diff 4 6", "inspect run --diff 4 6 --json", "inspect run --diff 6 copy"),
        *("inspect run --diff 6 other", "inspect other --full", "repair run --from copy"),
        "export run --to state.npz",
    ]
    dated(place)
    printed = [(command, holdfast(*command.split())) for command in commands]
    save(CheckpointStore(run_dir), state, header=Header("another", 1, 8))
    step = run_dir / "checkpoints/step-000000000006"
    (step / "MANIFEST.json").write_text("{}")
    (step / "shard-00001-of-00002.h5").unlink()
    os.truncate(run_dir / "checkpoints/step-000000000004/shard-00000-of-00002.h5", 100)
    dated(place)
    for command in ("verify run", "inspect run", "inspect run --step 4", "repair run --from copy"):
        printed.append((command, holdfast(*command.split())))

    compare("checkpoints", printed, place)


def dated(place: Path) -> None:
    """Let all steps be saved at one moment."""
    for manifest in place.rglob("MANIFEST.json"):
        os.utime(manifest, (0, NOW - 75.0))


def test_help(place: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of a job stand in docs/options.md."""
    monkeypatch.setenv("COLUMNS", "80")
    own = ("attach", "demo", "export", "inspect", "list", "logs", "repair", "report", "save")
    more = ("scale", "status", "stop", "verify")
    pages = ["--help", *(f"{name} --help" for name in (*own, *more))]

    compare("help", [(page, holdfast(*page.split())) for page in pages], place)
