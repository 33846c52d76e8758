"""``holdfast status`` of runs that no job works on, and of directories that hold none."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from commands import holdfast_code
from rich.console import Console

from holdfast.runtime.commands.job_status import StatusSource
from holdfast.runtime.commands.status import page_of
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.progress import WorkerReport


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, script="/a/train.py")
    journal.record("launch", workers=[0, 1])
    journal.record("step", step=1, epoch=1, seconds=0.5, samples=8, generation=1)
    journal.record("failure", worker=1, cause="signal [SIGKILL]", step=1, phase="training")
    journal.record("epoch", epoch=1, epochs=3, step=1, metrics={"loss": 0.5})
    journal.record("checkpoint", step=1, seconds=0.1, bytes=10)
    journal.record("job_ended", exit_code=75, reason="stopped at step 1")
    journal.close()
    return tmp_path


def test_ended_job_is_shown_with_how_it_ended(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert holdfast_code("status", run_dir) == ExitCode.DONE

    lines = " ".join(capsys.readouterr().out.split())
    for fact in (
        "run r1",
        "job train.py, launched on 2 workers",
        "state ended with exit code 75: stopped at step 1",
        "progress step 1",
        "last epoch Epoch 1/3 - loss: 0.5000",
        "saves step 1, ",
        "worker 1 died after step 1 (signal [SIGKILL])",
    ):
        assert fact in lines
    assert "metrics" not in lines


@pytest.mark.parametrize("command", ["status", "report"])
def test_no_line_of_a_terminal_breaks_a_digest_and_a_file_has_it_whole(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = "0123456789abcdef" * 4
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, script="/a/train.py")
    journal.record("job_ended", exit_code=0, reason=f"completed step 9, state sha256 {digest}")
    journal.close()

    monkeypatch.delenv("COLUMNS", raising=False)
    holdfast_code(command, tmp_path)
    assert f"completed step 9, state sha256 {digest}" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    holdfast_code(command, tmp_path)

    out = capsys.readouterr().out
    assert "completed step 9, state sha256 0123456789abcdef…" in " ".join(out.split())
    assert "0123456789abcdef0" not in out


@pytest.mark.parametrize("watch", [[], ["--watch"]], ids=["once", "watched"])
def test_json_of_an_ended_job_is_one_object(
    run_dir: Path, capsys: pytest.CaptureFixture[str], watch: list[str]
) -> None:
    assert holdfast_code("status", run_dir, "--json", *watch) == ExitCode.DONE

    content = json.loads(capsys.readouterr().out)
    assert (content["is_over"], content["exit_code"], content["step"]) == (True, 75, 1)


def test_damaged_lines_of_a_journal_are_left_out(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run_dir / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"event": "step"}\n{"event": "epoch", "now": "late"}\n\xff\xfe{"torn')

    assert holdfast_code("status", run_dir) == ExitCode.DONE
    assert "progress step 1" in " ".join(capsys.readouterr().out.split())


def _no_directory(path: Path) -> None:
    path.rmdir()


def _file(path: Path) -> None:
    path.rmdir()
    path.write_text("")


def _empty_journal(path: Path) -> None:
    (path / "journal.jsonl").write_text("")


def _no_records(path: Path) -> None:
    (path / "journal.jsonl").write_text("no record\n")


def _journal_is_a_folder(path: Path) -> None:
    (path / "journal.jsonl").mkdir()


def _journal_is_a_link(path: Path) -> None:
    (path / "elsewhere").write_text("")
    (path / "journal.jsonl").symlink_to(path / "elsewhere")


def _foreign_record(path: Path) -> None:
    (path / "RUN.json").write_text('{"format": 99}')


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (_no_directory, "does not exist; give the directory of a run"),
        (_file, "is no run: it is a file; give the directory of a run"),
        (lambda _: None, "is no run: it has no RUN.json; give the directory of a run"),
        (_empty_journal, "holds no records; no job has started in"),
        (_no_records, "holds no records; no job has started in"),
        (_journal_is_a_folder, "journal.jsonl"),
        (_journal_is_a_link, "journal.jsonl"),
        (_foreign_record, "RUN.json is not a valid run record: its format is 99"),
    ],
)
def test_directory_without_a_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object, complaint: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    damage(place)  # type: ignore[operator]

    assert holdfast_code("status", place) == ExitCode.USAGE

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("holdfast: error: ")
    assert complaint in said[0]


def test_looking_changes_nothing(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}

    holdfast_code("status", run_dir)
    capsys.readouterr()

    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before
    assert os.listdir(run_dir) == ["journal.jsonl"]


def test_page_says_what_steps_are_made_of_and_who_is_slow(run_dir: Path) -> None:
    source = StatusSource(run_dir)
    spent: list[Mapping[str, float]] = [{"wait": 6.0, "compute": 4.0}, {"read": 9.0, "wait": 1.0}]
    workers = tuple(
        WorkerReport(number, 7, "training", 5, 1, None, None, spent_s=seconds)
        for number, seconds in enumerate(spent)
    )
    console = Console(file=io.StringIO(), width=200)

    console.print(page_of(replace(source.poll(0.0), workers=workers), console))

    lines = " ".join(console.file.getvalue().split())
    source.close()
    assert "slowest worker 1, most of it in read: the others wait for 60% of their time" in lines
    assert "0 wait 60%, compute 40% 1 read 90%, wait 10%" in lines
