"""The head cannot speak, or makes a mistake: its workers train on to the same bytes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from extended import extended
from workload import EVEN, LONG, PreparedJob, Undisturbed, assert_whole, request_of, run_job

from holdfast.testing import JobRequest, JobRun

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(90)]


CLOSED_PIPE = """
import os
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
os.dup2(writer, 2)
"""
FULL_DISK = """
import os
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1)
os.dup2(full, 2)
"""
HELD_TERMINAL = """
import os
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while os.write(writer, bytes(4096)):
        pass
except BlockingIOError:
    os.set_blocking(writer, True)  # each write from now on waits for ever
os.dup2(writer, 1)
os.dup2(writer, 2)
"""
FAILS_AT_A_DEATH = """
from holdfast.runtime.head.console import JobConsole
def fail(self, event):
    if type(event).__name__ == "WorkerExited":
        raise ZeroDivisionError("a mistake")
JobConsole.show = fail
"""
FAILS_BEFORE_THE_FIRST_LAUNCH = """
from holdfast.runtime.head.job import Job
def fail(*_, **__):
    raise ZeroDivisionError("a mistake")
Job.order_of = fail
"""
IN_THE_HEAD = """
from holdfast.runtime.head.head_process import HeadTerms
real, preparation = HeadTerms.command, {!r}
def command(self):
    words = real(self)
    words[2] = preparation + words[2]
    return words
HeadTerms.command = command
"""

STRUCK_AT_ITS_START = """
from holdfast.runtime.head.head_process import HeadTerms
real, strikes = HeadTerms.command, ["KILL", "STOP"]
def command(self):
    return ["sh", "-c", f"kill -{strikes.pop()} $$; sleep 600"] if strikes else real(self)
HeadTerms.command = command
"""

speechless = pytest.mark.parametrize(
    "preparation",
    [
        pytest.param(CLOSED_PIPE, id="closed pipe"),
        extended(FULL_DISK, id="full disk"),
        extended(HELD_TERMINAL, id="held terminal"),
    ],
)


def _prepared(request: JobRequest, preparation: str) -> PreparedJob:
    return PreparedJob(**asdict(request), preparation=preparation)


def _run(request: JobRequest, preparation: str) -> JobRun:
    return run_job(_prepared(request, preparation))


@speechless
def test_job_that_fails_has_its_exit_code_although_stderr_takes_nothing(
    tmp_path: Path, preparation: str
) -> None:
    faults = [f"kill worker={worker} step=3" for worker in range(2)]
    request = request_of(EVEN, tmp_path, workers=2, faults=faults, options=["--max-restarts", "0"])

    job = _run(request, preparation)

    assert job.exit_code == 70
    assert job.leftovers == ()


@pytest.mark.parametrize("preparation", [CLOSED_PIPE, FULL_DISK])
def test_request_that_is_refused_has_its_exit_code_although_stderr_takes_nothing(
    tmp_path: Path, preparation: str
) -> None:
    request = JobRequest(script=tmp_path / "missing.py", run_dir=tmp_path, workers=1)

    assert _run(request, preparation).exit_code == 2


def test_mistake_of_the_head_leaves_its_workers_training(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Nothing is decided about the first death; the survivors reach the end by themselves."""
    request = request_of(LONG, tmp_path, workers=3, faults=["kill worker=1 step=3"])

    job = _run(request, IN_THE_HEAD.format(FAILS_AT_A_DEATH))

    assert job.exit_code == 0
    assert job.events("head_failed")[0]["reason"] == "ZeroDivisionError: a mistake"
    assert "ZeroDivisionError: a mistake" in job.stderr
    assert "the workers go on, but are not relaunched" in job.stderr
    assert job.sha256 == undisturbed(LONG)
    assert job.leftovers == ()


def test_mistake_of_the_head_before_a_launch_leaves_nothing_behind(tmp_path: Path) -> None:
    request = request_of(EVEN, tmp_path, workers=2)

    job = _run(request, IN_THE_HEAD.format(FAILS_BEFORE_THE_FIRST_LAUNCH))

    assert job.exit_code == 70
    assert "ZeroDivisionError: a mistake" in job.stderr
    assert job.leftovers == ()


@pytest.mark.extended  # a mistake later on runs above
def test_agent_that_is_struck_before_it_listens_is_started_again(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    request = request_of(EVEN, tmp_path, workers=2, options=["--heartbeat-timeout", "5"])

    job = _run(request, STRUCK_AT_ITS_START)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert job.report.relaunches == ()
