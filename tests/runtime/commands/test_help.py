"""What a user sees who looks for a command: the help, hints, and the run that needs no name."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import click
import pytest
from commands import holdfast_code
from journal_entries import WrittenJournal

from holdfast.runtime.commands.main import all_commands, holdfast
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord


def begin_run(run_dir: Path, script: str = "/a/train.py") -> Path:
    run_dir.mkdir(parents=True)
    RunDirectory(run_dir).create_record(RunRecord("a" * 16, FORMAT, 1e9, 2, 0, 1))
    journal = WrittenJournal(run_dir / "journal.jsonl", run_id="a" * 16, source="head")
    journal.record("job_started", workers=2, script=script)
    journal.record("step", step=7, epoch=1, seconds=0.5, samples=8, generation=1)
    journal.record("job_ended", exit_code=75, reason="stopped at step 7")
    journal.close()
    return run_dir


def test_each_command_has_two_examples_that_parse_and_are_shown_unbroken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = holdfast.context_settings | {"resilient_parsing": True}
    context = click.Context(holdfast, info_name="holdfast", **settings)
    for command in itertools.chain(*all_commands().values()):
        assert len(command.examples) == 2
        for example in command.examples:
            first, *words = shlex.split(example)
            assert first == command.name
            parsed = command.make_context(first, words, parent=context, resilient_parsing=True)
            assert parsed.params
        assert holdfast_code(first, "--help") == ExitCode.DONE
        lines = capsys.readouterr().out.splitlines()
        shown = [line for line in lines if line.startswith("  holdfast ")][-2:]
        assert shown == [f"  holdfast {example}" for example in command.examples]
        assert all(len(line) <= 80 for line in lines)


def test_options_of_run_stand_in_groups_with_defaults_as_people_write_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert holdfast_code("run", "--help") == ExitCode.DONE

    page = capsys.readouterr().out
    headings = re.findall(r"^(\w.*):$", page, re.MULTILINE)
    assert headings == [
        *("Run", "Hosts", "Checkpoints", "Deaths and stalls", "Stopping and batch jobs"),
        *("Keras", "Processes and MPI", "Output and tests", "Other options", "Examples"),
    ]
    words = " ".join(page.split())
    assert "[default: 10 s]" in words
    assert not re.search(r"default: \d+\.\d+\]", words)


def test_command_without_a_directory_takes_the_only_run_here(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin_run(tmp_path / "holdfast-train")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)

    assert holdfast_code("status") == ExitCode.DONE

    output = capfd.readouterr()
    assert output.err == "holdfast: the run here is holdfast-train\n"
    assert "progress  step 7" in output.out
    monkeypatch.chdir(tmp_path / "holdfast-train")
    assert holdfast_code("report") == ExitCode.DONE
    assert "step 7" in capfd.readouterr().out


@pytest.mark.parametrize("command", ["status", "report", "attach", "stop", "save", "inspect"])
def test_command_without_a_directory_names_the_runs_to_choose_from(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert holdfast_code(command) == ExitCode.USAGE
    assert f"no run is in {tmp_path}; name its directory" in capsys.readouterr().err

    begin_run(tmp_path / "a")
    begin_run(tmp_path / "b")
    assert holdfast_code(command) == ExitCode.USAGE

    words = f"2 runs are here: a, b; name one, as in `holdfast {command} a`"
    assert capsys.readouterr().err == f"holdfast: error: {words}\n"


def test_command_about_a_job_takes_the_only_run_that_lives(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        begin_run(tmp_path / name)
    lease = RunDirectory(tmp_path / "b").acquire_lease()  # as a job that is just starting

    assert holdfast_code("status") == ExitCode.DONE
    assert capfd.readouterr().err == "holdfast: the run here is b\n"
    assert holdfast_code("report") == ExitCode.USAGE
    names = "b (running), a, c; name one, as in `holdfast report b`"
    assert capfd.readouterr().err == f"holdfast: error: 3 runs are here: {names}\n"
    assert holdfast_code("list", "--json") == ExitCode.DONE
    assert [run["run_dir"] for run in json.loads(capfd.readouterr().out)] == ["b", "a", "c"]

    other = RunDirectory(tmp_path / "c").acquire_lease()
    assert holdfast_code("status") == ExitCode.USAGE
    assert "3 runs are here: b (running), c (running), a; name" in capfd.readouterr().err
    for each in (lease, other):
        each.release()


def test_list_shows_all_runs_below_a_directory_and_none_within_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert holdfast_code("list", tmp_path) == ExitCode.DONE
    assert capsys.readouterr().out == f"no run is in {tmp_path} or below it\n"

    begin_run(tmp_path / ("deep" * 30) / "er" / "second", "/a/other.py")  # no terminal is so wide
    run = begin_run(tmp_path / "first")
    assert holdfast_code("list", tmp_path) == ExitCode.DONE
    assert "previous" not in capsys.readouterr().out

    begin_run(run / "previous-1")
    begin_run(tmp_path / ".hidden")

    assert holdfast_code("list", tmp_path) == ExitCode.DONE

    lines = capsys.readouterr().out.splitlines()
    (second,) = (line for line in lines if "second" in line)
    (first,) = (line for line in lines if "first" in line)
    assert first.split()[:3] == [str(run), "train.py", "stopped"]
    assert "other.py" in second
    assert [line.split()[-1] for line in (first, second)] == ["1", "0"]
    assert lines[-1].endswith("; `rm -r RUN_DIR/previous-*` removes them")
    assert not any("previous-1" in line or "hidden" in line for line in lines)

    assert holdfast_code("list", tmp_path, "--json") == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert [(Path(run["run_dir"]).name, run["step"]) for run in found] == [
        *(("second", 7), ("first", 7)),
    ]
