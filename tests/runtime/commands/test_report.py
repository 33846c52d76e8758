from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import holdfast_code

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory

Holdfast = Callable[..., tuple[int, str, str]]
SHA256 = "0123456789abcdef" * 4


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2)
    journal.record("step", step=1, epoch=0, seconds=0.5, samples=8, generation=1)
    journal.record("failure", worker=1, cause="signal SIGKILL", step=1, phase="training")
    journal.record("recovery", generation=2, step=2, lost=[1], survivors=[0], next_step_ms=9.0)
    journal.record("relaunch", reason="all workers died", spent=1, workers=[2, 3])
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10, generation=1)
    journal.record("checkpoint_skipped", step=2)
    journal.record("completed", step=2, epochs=1, sha256=SHA256, metrics={"loss": 0.25})
    journal.record("job_ended", exit_code=0, reason="done")
    journal.close()
    return tmp_path


def test_json_holds_the_report(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert holdfast_code("report", run_dir, "--json") == ExitCode.DONE

    content = json.loads(capsys.readouterr().out)
    assert content["final_sha256"] == SHA256
    assert content["steps"] == 2
    assert content["failures"][0]["worker"] == 1
    assert content["checkpoints"] == [{"step": 1, "seconds": 0.1, "bytes": 10, "generation": 1}]


def test_tables_tell_what_happened(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert holdfast_code("report", run_dir) == ExitCode.DONE

    text = capsys.readouterr().out
    for fact in (
        SHA256,
        "r1",
        "ended with exit code 0: done",
        "loss: 0.2500",
        "signal SIGKILL",
        "9 ms",
        "from step",
        "workers 2 and 3",
        "1 committed, 0 failed, 0 rejected, 1 skipped",
    ):
        assert fact in text


def test_journal_without_the_end_of_a_job_that_has_ended_is_not_called_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its disk was full to the end, so not even the gap is in it."""
    lease = RunDirectory(tmp_path).acquire_lease()
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2)
    journal.close()
    lease.end()
    lease.release()

    assert holdfast_code("report", tmp_path) == ExitCode.DONE

    assert "lacks the end of the last job; so the" in capsys.readouterr().out


def test_evidence_of_a_death_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2)
    seen = {"stacks": "  main thread:\n    contribute (/home/ann/train.py:42)", "limit": "stall"}
    samples = {"step": 8, "microbatch": 1, "count": 2, "ids": [5, 17], "is_validation": False}
    for worker in (0, 1):
        journal.record(
            "failure",
            worker=worker,
            cause="fenced",
            step=7,
            stderr=["[red]not markup[/red]"],
            samples=samples,
            **seen,
        )
    place = {"where": "contribute (train.py:42)"}
    journal.record("suspected", worker=1, seconds=300.1, step=7, **place, **seen)
    journal.close()

    assert holdfast_code("report", tmp_path) == ExitCode.DONE

    text = capsys.readouterr().out
    for fact in (
        "(stall limit)",
        "    contribute (/home/ann/train.py:42)",
        "[red]not markup[/red]",
        "microbatch 1, samples 5, 17",
        "worker 1 has made no progress for 300 s after step 7, in contribute",
        "(train.py:42), and no other worker waits for it",
        "2 deaths: fenced",
    ):
        assert fact in text, text


def test_tables_tell_each_failure_and_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, now=100.0)
    failure = {
        "worker": 1,
        "now": 101.5,
        "cause": "silent for 1 s",
        "phase": "training",
        "fenced": True,
    }
    journal.record("failure", step=2, **failure)
    journal.record("recovery", generation=2, step=3, lost=[1], survivors=[0], next_step_ms=12.4)
    journal.record("relaunch", reason="all workers died", spent=1, workers=[4])
    journal.record("epoch", epoch=1, step=3, samples=7, exact=False, metrics={})
    journal.close()

    assert holdfast_code("report", tmp_path) == ExitCode.DONE

    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
    failure = ["worker 1: silent for 1 s after step 2 while training, fenced", "job 1, 1.5 s"]
    assert failure in cells
    assert ["3", "worker 1", "worker 0", "1", "12 ms"] in cells
    assert ["all workers died", "worker 4", "-", "-"] in cells
    assert any("not exact: 1" in line for line in lines)


@pytest.mark.parametrize("content", ["", '{"event": "step"}\n'], ids=["empty", "damaged"])
def test_journal_without_a_sound_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "journal.jsonl").write_text(content)

    assert holdfast_code("report", tmp_path) == ExitCode.USAGE
    assert "holds no records" in capsys.readouterr().err


def test_words_of_the_script_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets are no markup, and one that closes nothing is no error."""
    monkeypatch.setenv("COLUMNS", "250")
    cause = "ValueError: [red]no[/red] token [/INST] in list[int]"
    journal = Journal(tmp_path / "journal.jsonl", run_id="[r1]", source="head")
    journal.record("job_started", workers=2)
    journal.record("failure", worker=1, cause=cause, step=1)
    journal.record("relaunch", reason=f"relaunch: {cause}", spent=1, workers=[2, 3])
    journal.record("rejected", step=1, reason=cause)
    journal.record("job_ended", exit_code=1, reason=cause)
    journal.close()

    assert holdfast_code("report", tmp_path) == ExitCode.DONE

    text = capsys.readouterr().out
    for fact in (
        f"worker 1: {cause} after step 1",
        f"relaunch: {cause}",
        f"rejected the checkpoint of step 1: {cause}",
        f"ended with exit code 1: {cause}",
        "[r1]",
    ):
        assert fact in text


def test_damaged_lines_of_a_journal_are_left_out(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run_dir / "journal.jsonl").open("ab") as journal:
        journal.write(
            b'{"event": "step", "step": 9}\n'
            b'{"event": "memory_differs", "now": 1, "time": 1, "step": 1, "workers": [0]}\n'
            b'{"event": "recovery", "now": 1, "time": 1, "lost": "all"}\n'
        )

    assert holdfast_code("report", run_dir, "--json") == ExitCode.DONE

    content = json.loads(capsys.readouterr().out)
    assert (content["steps"], len(content["recoveries"]), content["exit_code"]) == (2, 1, 0)


def cells_of(text: str) -> list[list[str]]:
    lines = text.splitlines()
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]


def test_epochs_stand_in_a_table_and_the_parts_of_goodput_add_up(
    tmp_path: Path, holdfast: Holdfast
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, now=100.0)
    for epoch in range(1, 31):
        now, step = 101.0 + epoch, {"step": epoch, "epoch": epoch, "generation": 1}
        journal.record("step", seconds=0.5, samples=8, now=now, **step)
        figures = {"metrics": {"[x]": 2.0, "loss": 1 / epoch}, "validation": {"loss": 0.5}}
        journal.record("epoch", seconds=1.0, now=now, **step, **figures)
    journal.record("job_ended", exit_code=0, reason="done", now=132.5)
    journal.close()

    cells = cells_of(holdfast("report", tmp_path)[1])

    assert ["epoch", "step", "time", "loss", "val_loss", "[x]"] in cells
    epochs = [row[0] for row in cells if len(row) == 6 and row[2] in ("1.0 s", "…")]
    assert epochs == ["1", "2", "3", "…", *map(str, range(14, 31))]
    assert ["30", "30", "1.0 s", "0.0333", "0.5000", "2.0000"] in cells
    parts = [row[:3] for row in cells if row[-1:] and row[0] in ("starting", "training", "ending")]
    assert parts == [
        ["starting", "1.50 s", "4.6%"],
        ["training", "29.50 s", "90.8%"],
        ["ending", "1.50 s", "4.6%"],
    ]
    assert ["sum", "32.50 s", "100.0%", ""] in cells


def test_metrics_that_do_not_fit_into_the_terminal_are_counted(
    tmp_path: Path, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    metrics = {f"a metric with number {i}": 0.5 for i in range(9)}
    journal.record("epoch", epoch=1, step=1, seconds=1.0, metrics=metrics)
    journal.close()

    out = holdfast("report", tmp_path)[1]

    assert ["epoch", "step", "time", *list(metrics)[:2]] in cells_of(out)
    assert "7 more columns: see --html or --json" in out
    assert max(map(len, out.splitlines())) <= 80


def test_page_lies_in_the_run_directory_or_where_it_is_wanted(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.html"

    assert holdfast_code("report", run_dir, "--html") == ExitCode.DONE
    assert holdfast_code("report", run_dir, "--html", other) == ExitCode.DONE

    out = capsys.readouterr().out.splitlines()
    for line, path in zip(out, (run_dir / "report.html", other), strict=True):
        assert line.startswith(f"wrote {path} (")
        assert SHA256 in path.read_text()
