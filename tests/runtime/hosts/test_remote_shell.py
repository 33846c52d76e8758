"""Commands on other hosts: what the program there receives, under shells of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.remote_host import RemoteShell, python_there

HAND_OVER = '#!/bin/sh\nshift\nexec "$@"\n'
"""As srun does: the words of the command are the words of the program."""
JOIN = '#!/bin/sh\nshift\nexec /bin/sh -c "$*"\n'
"""As ssh does: the words are joined with spaces, and a shell splits them again."""
HOSTILE = ("a b", "$HOME", "it's", '"', "*", "\\n", ";", "")
TELL = "import json, sys; print(json.dumps(sys.argv[1:]))"


def shell(directory: Path, name: str, text: str) -> RemoteShell:
    program = directory / name
    program.write_text(text)
    program.chmod(0o700)
    return RemoteShell((str(program),))


def said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


@pytest.mark.process
@pytest.mark.parametrize(("name", "text"), [("srun", HAND_OVER), ("ssh-wrapper", JOIN)])
def test_words_arrive_as_they_are(tmp_path: Path, name: str, text: str) -> None:
    remote = shell(tmp_path, name, text)

    answer = said(remote.command("b", [sys.executable, "-c", TELL, *HOSTILE]))

    assert json.loads(answer) == list(HOSTILE)


@pytest.mark.process
@pytest.mark.parametrize("text", [HAND_OVER, JOIN], ids=["hands over", "joins"])
def test_module_of_holdfast_starts_under_a_shell_that_nobody_knows(
    tmp_path: Path, text: str
) -> None:
    remote = shell(tmp_path, "my-shell", text)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the user is imported')")
    command = remote.command("b", python_there("json.tool", {"PYTHONPATH": "/nowhere"}))

    ended = subprocess.run(
        command, input="[1]", capture_output=True, text=True, cwd=tmp_path, check=True
    )

    assert (json.loads(ended.stdout), ended.stderr) == ([1], "")


def test_variables_that_python_needs_stand_in_the_command_and_no_others() -> None:
    environment = {"LD_LIBRARY_PATH": "/opt/lib", "PYTHONPATH": "", "SECRET": "s"}

    command = python_there("holdfast.runtime.hosts.agent", environment)

    assert command[:3] == ("env", "LD_LIBRARY_PATH=/opt/lib", sys.executable)
    assert command[-1] == "holdfast.runtime.hosts.agent"
    assert python_there("m", {})[0] == sys.executable


def test_step_of_srun_is_what_its_command_line_says(monkeypatch: pytest.MonkeyPatch) -> None:
    changing = ("SRUN_CPUS_PER_TASK", "SLURM_LABELIO", "SLURM_STDINMODE", "SLURM_NTASKS_PER_NODE")
    leading = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_ACCOUNT")
    for name in (*changing, *leading):
        monkeypatch.setenv(name, "1")

    command = RemoteShell.of("/usr/bin/srun -N1 -w").command("b", ["true"])

    unset = {word.removeprefix("-u") for word in command if word.startswith("-u")}
    assert unset >= set(changing)
    assert not unset & set(leading)
    assert command[0] == "env"
    assert command[-5:] == ["/usr/bin/srun", "-N1", "-w", "b", "true"]
    assert RemoteShell.of("ssh").command("b", ["true"])[0] == "ssh"


def test_paths_of_the_shell_are_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("KEYS", "/keys")

    shell = RemoteShell.of("~/bin/into-image -i $KEYS/x '%h ~'")

    assert shell.words == ("/home/me/bin/into-image", "-i", "/keys/x", "%h ~")


def test_ssh_never_asks_and_gives_a_silent_host_up_but_the_user_comes_first() -> None:
    command = RemoteShell.of("/usr/bin/ssh -o ConnectTimeout=3 -p 22").command("b", ["true"])

    assert command[:5] == ["/usr/bin/ssh", "-o", "ConnectTimeout=3", "-p", "22"]
    assert "BatchMode=yes" in command
    assert command.index("ConnectTimeout=3") < command.index("ConnectTimeout=10")
    assert command[-2:] == ["b", "true"]


@pytest.mark.parametrize("text", ["", "  ", "ssh 'o"])
def test_text_that_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rsh"):
        RemoteShell.of(text)
