"""The process that becomes mpiexec lives no longer than its agent, and never waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.system import become
from holdfast.runtime.system.processes import wait_all_ended

BOUND_S = 60.0
SHIM = (sys.executable, "-I", "-S", str(become.__file__))
AGENT = """
import os, subprocess, sys
(offers, ask), (hear, answers) = os.pipe(), os.pipe()
os.close(answers)
line = [*sys.argv[1:], str(os.getpid()), str(ask), str(hear)]
line += ["/bin/sh", "-c", "echo begun; exec sleep 600"]
child = subprocess.Popen(line, pass_fds=(ask, hear), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
"""An agent that has no answer; its mpiexec has begun when it prints."""


def _become(parent: int, script: str) -> subprocess.CompletedProcess[str]:
    """Become a shell, for an agent that closes its pipes; ASK and HEAR are in the environment."""
    (offers, ask), (hear, answers) = os.pipe(), os.pipe()
    os.close(answers)
    try:
        return subprocess.run(
            [*SHIM, str(parent), str(ask), str(hear), "/bin/sh", "-c", script],
            env={**os.environ, "ASK": str(ask), "HEAR": str(hear)},
            pass_fds=(ask, hear),
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
    finally:
        for descriptor in (offers, ask, hear):
            os.close(descriptor)


def _rights(status: str) -> list[str]:
    return [line for line in status.splitlines() if line.startswith(("NoNewPrivs", "Seccomp"))]


@pytest.mark.parametrize(("answer", "is_taken"), [(b"y", True), (b"n", False), (b"", False)])
def test_descriptor_is_taken_only_if_the_agent_says_so(answer: bytes, *, is_taken: bool) -> None:
    (offers, ask), (hear, answers) = os.pipe(), os.pipe()
    os.write(answers, answer)
    os.close(answers)

    taken = become._can_be_taken(12, ask, hear)

    assert taken is is_taken
    assert os.read(offers, 100) == b"12\n"
    for descriptor in (offers, ask, hear):
        os.close(descriptor)


@pytest.mark.process
def test_process_without_an_answer_becomes_the_program_as_it_is() -> None:
    ended = _become(os.getpid(), "cat /proc/self/status")

    assert ended.returncode == 0, ended.stderr
    assert _rights(ended.stdout) == _rights(Path("/proc/self/status").read_text())


@pytest.mark.process
def test_program_inherits_no_pipe_of_the_agent() -> None:
    ended = _become(os.getpid(), "ls /proc/$$/fd; echo ask $ASK; echo hear $HEAR")

    descriptors, _, pipes = ended.stdout.partition("ask ")
    assert not set(pipes.replace("hear ", "").split()) & set(descriptors.split())


@pytest.mark.process
def test_process_whose_agent_is_gone_never_becomes_mpiexec(tmp_path: Path) -> None:
    ended = _become(1, f"touch {tmp_path}/begun")

    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_mpiexec_dies_with_its_agent() -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, *SHIM], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    mpiexec = int(agent.stdout.readline())

    agent.kill()
    agent.communicate()

    assert wait_all_ended([mpiexec], BOUND_S) == ()
