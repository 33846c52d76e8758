from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import holdfast_code
from terminals import PtyTerminal, exit_code_in, wait_until

from holdfast.runtime.commands import main as main_file
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.system.own_process import module_command

HEAVY = ("mpi4py", "tensorflow", "keras", "h5py")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["run"], "Missing argument 'SCRIPT'; see `holdfast run --help`"),
        (["run", "nowhere.py"], "nowhere.py does not exist"),
        (["run", "-n", "many", "train.py"], "'many' is not a valid integer"),
        (["run", "--wrokers", "2"], "no such option --wrokers; did you mean --workers?"),
        (["run", "--bogus", "2"], "no such option --bogus; see `holdfast run --help`"),
        (["train.py"], "no such command 'train.py'; did you mean `holdfast run train.py`?"),
        (["stauts"], "no such command 'stauts'; did you mean `holdfast status`?"),
        (["xyzzy"], "no such command 'xyzzy'; `holdfast --help` lists them"),
        (["attach", "nowhere"], "nowhere does not exist"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["inspect", "run", "8000"], "8000 is no run; a step is given as --step 8000"),
        (["logs", "run", "2"], "2 is no run; a worker is given as --worker 2"),
    ],
)
def test_bad_request_is_one_line_and_exit_2(
    argv: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert holdfast_code(*argv) == ExitCode.USAGE

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("holdfast: error: ")
    assert output.err.count("\n") == 1
    assert complaint in output.err


def test_interrupt_is_one_line_with_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_file.holdfast, "main", interrupt)

    assert holdfast_code("run") == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "holdfast: error: interrupted\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[run]\nworker = 4\n", "unknown options under [run]: worker; known are"),
        ("[run]\nsave-evry = 4\n", "unknown options under [run]: save-evry; known are"),
        ("[run]\nsave-evry = 4\n", "save-every, scale-"),
        ("[walk]\nworkers = 4\n", "heading [walk], but there is no such command; commands are"),
        ("[run", "holdfast.toml cannot be read"),
    ],
)
def test_config_file_with_a_mistake_is_refused(
    content: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text(content)

    assert holdfast_code("run", "train.py") == ExitCode.USAGE
    assert complaint in capsys.readouterr().err


def test_slip_in_the_table_of_another_command_stops_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text("[report]\njsn = true\n")

    assert holdfast_code("run", "--show-config", "train.py") == ExitCode.DONE
    assert holdfast_code("report", "nowhere") == ExitCode.USAGE

    assert "unknown options under [report]: jsn; known are " in capsys.readouterr().err

    (tmp_path / "holdfast.toml").write_text("[report]\njson = true\n")
    journal = '{"event": "job_started", "now": 1.0, "time": 1.0, "run_id": "r", "workers": 1}\n'
    (tmp_path / "journal.jsonl").write_text(journal)
    assert holdfast_code("report", ".") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["jobs"] == 1


@pytest.mark.parametrize(
    "module",
    ["commands.main", "head.client", "head.head", "host.agent", "host.pool", "host.guard"],
)
def test_processes_around_the_workers_load_no_heavy_library(module: str) -> None:
    """They must start in milliseconds, and MPI or TensorFlow state must not be forked."""
    program = f"import sys, holdfast.runtime.{module}; print(*set({HEAVY}) & set(sys.modules))"

    answer = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert answer.strip() == ""


@pytest.mark.parametrize("argv", [["--help"], ["run", "--show-config", "train.py"]])
def test_full_stdout_is_one_sentence_on_stderr(
    argv: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()

    with Path("/dev/full").open("w") as full:
        code = _code_with_stdout(argv, full.fileno(), tmp_path)

    assert code == ExitCode.PROGRAM_FAILED
    assert capfd.readouterr().err == (
        "holdfast: error: stdout takes nothing: No space left on device; "
        "send the output to another place\n"
    )


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_take_what_is_said(tmp_path: Path, closed: str) -> None:
    """Lines, tables and errors all ask Python's streams, which has none of its own then."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "RUN.json").touch()
    command = shlex.join(module_command("holdfast"))
    lines = [f"{command} {argv} {closed}; echo $? >> codes" for argv in ("list", "stop run")]

    ended = subprocess.run(
        ["sh", "-c", "; ".join(lines)], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert "Traceback" not in ended.stderr
    assert (tmp_path / "codes").read_text().split() == ["0", str(ExitCode.STOPPED_EARLY)]


def test_reader_that_has_gone_hears_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    assert _code_with_stdout(["--help"], writer, tmp_path) == ExitCode.PROGRAM_FAILED

    os.close(writer)
    assert capfd.readouterr().err == ""


def _code_with_stdout(argv: list[str], stdout: int, directory: Path) -> int:
    command = module_command("holdfast", *argv)
    return subprocess.run(command, stdout=stdout, cwd=directory, check=False).returncode


def test_job_in_the_background_is_not_stopped_by_a_terminal_that_wants_no_output(
    tmp_path: Path,
) -> None:
    """``stty tostop``; the shell waits for the job, and tells whether it was stopped."""
    command = module_command("holdfast", "run", "no.py")
    shell = ["env", "--default-signal=TTOU", "sh", "-mc", 'stty tostop; "$@" & wait $!', "sh"]
    terminal = PtyTerminal([*shell, *command], os.environ, tmp_path, columns=200)
    try:
        lines = wait_until(terminal, lambda lines: exit_code_in(lines) is not None)
    finally:
        terminal.close()

    assert exit_code_in(lines) == 2
    assert any("holdfast: error: " in line for line in lines), lines
