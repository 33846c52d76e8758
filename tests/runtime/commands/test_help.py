"""What a user sees who looks for a command: the help, hints, and the run that needs no name."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commands import holdfast_code

from holdfast.runtime.commands.help import EXAMPLES, GROUPS
from holdfast.runtime.commands.main import holdfast
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory

COMMANDS = sorted(holdfast.list_commands(click.Context(holdfast)))


def begin_run(run_dir: Path, script: str = "/a/train.py") -> Path:
    run_dir.mkdir(parents=True)
    (run_dir / "RUN.json").write_text(
        json.dumps(
            {"run_id": "a" * 16, "format": 1, "created": 1e9}
            | {"microbatches": 2, "threads": 1, "seed": 0}
        )
    )
    journal = Journal(run_dir / "journal.jsonl", run_id="a" * 16, source="head")
    journal.record("job_started", workers=2, script=script)
    journal.record("step", step=7, epoch=1, seconds=0.5, samples=8, generation=1)
    journal.record("job_ended", exit_code=75, reason="stopped at step 7")
    journal.close()
    return run_dir


def test_each_command_stands_in_one_group_of_the_help() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_two_examples_that_parse(name: str) -> None:
    examples = EXAMPLES[name]
    context = click.Context(holdfast, info_name="holdfast", resilient_parsing=True)

    assert len(examples) == 2
    for example in examples:
        first, *words = shlex.split(example)
        assert first == name
        command = holdfast.get_command(context, name)
        assert command is not None
        parsed = command.make_context(name, words, parent=context, resilient_parsing=True)
        assert "-h" not in words
        assert parsed.params


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", [80, 120])
def test_help_shows_examples_unbroken_and_fits(
    name: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    assert holdfast_code(name, "--help") == ExitCode.DONE

    lines = capsys.readouterr().out.splitlines()
    assert [f"  holdfast {example}" for example in EXAMPLES[name]] == [
        line for line in lines if line.startswith("  holdfast ")
    ][-2:]
    assert all(len(line) <= columns for line in lines)


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


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("train.py", "did you mean `holdfast run train.py`?"),
        ("stauts", "did you mean `holdfast status`?"),
        ("xyzzy", "`holdfast --help` lists them"),
    ],
)
def test_word_that_is_no_command_gets_a_hint(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert holdfast_code(word) == ExitCode.USAGE
    assert capsys.readouterr().err == f"holdfast: error: no such command {word!r}; {hint}\n"


@pytest.mark.process
def test_package_is_the_command_too() -> None:
    command = [sys.executable, "-m", "holdfast", "stauts"]

    found = subprocess.run(command, capture_output=True, text=True, check=False)

    assert found.returncode == ExitCode.USAGE
    assert "did you mean `holdfast status`?" in found.stderr


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


def test_command_in_a_run_directory_takes_that_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(begin_run(tmp_path / "holdfast-train"))

    assert holdfast_code("report") == ExitCode.DONE
    assert "step 7" in capsys.readouterr().out


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
    begin_run(tmp_path / ("deep" * 30) / "er" / "second", "/a/other.py")  # no terminal is so wide
    run = begin_run(tmp_path / "first")
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


def test_list_has_no_column_for_runs_that_nobody_has_set_aside(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begin_run(tmp_path / "run")

    assert holdfast_code("list", tmp_path) == ExitCode.DONE

    head, _, line = capsys.readouterr().out.strip().splitlines()
    assert "previous" not in head
    assert line.rstrip().endswith("none yet")


def test_list_of_a_directory_without_runs_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert holdfast_code("list", tmp_path) == ExitCode.DONE
    assert capsys.readouterr().out == f"no run is in {tmp_path} or below it\n"
