"""A mark finds the processes that inherited it, and signals reach no other one."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator

import pytest

from holdfast.runtime.system.processes import (
    bears_mark,
    command_line,
    marked_processes,
    signal_marked,
)

pytestmark = pytest.mark.process


@pytest.fixture
def marked() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A shell that waits for its own child, both with one mark."""
    token = secrets.token_hex(8)
    process = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo begun; wait"],
        env={**os.environ, "HOLDFAST_TEST_MARK": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield f"HOLDFAST_TEST_MARK={token}", process
        for pid in marked_processes(f"HOLDFAST_TEST_MARK={token}"):
            os.kill(pid, signal.SIGKILL)


def test_mark_finds_a_process_and_its_child(marked: tuple[str, subprocess.Popen[bytes]]) -> None:
    mark, process = marked

    assert process.pid in marked_processes(mark)
    assert set(marked_processes(mark).values()) <= {"sh", "sleep", "dash", "bash"}
    assert command_line(process.pid).startswith("sh\0-c\0sleep")


def test_signal_reaches_the_marked_process(marked: tuple[str, subprocess.Popen[bytes]]) -> None:
    mark, process = marked

    assert signal_marked(process.pid, mark, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_signal_does_not_reach_a_process_without_the_mark() -> None:
    """A process id may have been used again."""
    assert not bears_mark(os.getpid(), "HOLDFAST_TEST_MARK=nobody")
    assert not signal_marked(os.getpid(), "HOLDFAST_TEST_MARK=nobody", signal.SIGKILL)


def test_process_that_has_just_started_bears_its_mark() -> None:
    """It shows no variables until its program is loaded, which takes longer on a busy host."""
    token = secrets.token_hex(8)
    mark = f"HOLDFAST_TEST_MARK={token}"
    found = []
    for _ in range(300):
        environment = {**os.environ, "HOLDFAST_TEST_MARK": token}
        with subprocess.Popen(["sleep", "600"], env=environment) as process:
            found.append(bears_mark(process.pid, mark))
            process.kill()

    assert found == [True] * 300


def test_process_without_variables_bears_no_mark() -> None:
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        assert not bears_mark(process.pid, "HOLDFAST_TEST_MARK=nobody")
        process.kill()


def test_process_that_has_ended_bears_no_mark() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert not bears_mark(process.pid, "HOLDFAST_TEST_MARK=nobody")
        assert command_line(process.pid) == ""
