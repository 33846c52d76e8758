"""One job of a run: its surroundings, its output, and its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.tools.followed_run import Incarnation, run_command
from holdfast.runtime.tools.striker import JobTraces

pytestmark = pytest.mark.process

_SHOW = "import os; [print(f'{n}={v}') for n, v in sorted(os.environ.items())]"


@pytest.fixture
def traces() -> Iterator[JobTraces]:
    made = JobTraces("HOLDFAST_TEST_CHAOS")
    yield made
    made.kill_all()
    made.remove_files(())


def test_job_of_chaos_is_alone_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a batch job it would have that job requeued, and `fresh` would begin it anew."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("JOB_ID", "7")
    monkeypatch.setenv("HOLDFAST_CHAIN", "train-1")
    monkeypatch.setenv("HOLDFAST_SEED", "5")
    traces = JobTraces("HOLDFAST_TEST_CHAOS")

    job = Incarnation([sys.executable, "-c", _SHOW], traces, tmp_path)
    job.reap()
    job.stderr.close()

    said = (tmp_path / "stdout.txt").read_text().splitlines()
    assert not [line for line in said if line.startswith(("SLURM_", "JOB_ID", "HOLDFAST_CHAIN"))]
    assert {"HOLDFAST_FRESH=no", "HOLDFAST_SEED=5", traces.mark} <= set(said)
    traces.remove_files([job.pid])


def _end(job: Incarnation) -> int | None:
    job.reap()
    job.stderr.close()
    return job.exit_code


def test_output_of_the_next_job_is_added_to_that_of_the_last_one(
    traces: JobTraces, tmp_path: Path
) -> None:
    for number in (1, 2):
        line = ["sh", "-c", f"echo job {number}; echo trouble {number} >&2; exit {number}"]
        assert _end(Incarnation(line, traces, tmp_path)) == number

    assert (tmp_path / "stdout.txt").read_text() == "job 1\njob 2\n"
    assert (tmp_path / "stderr.txt").read_text() == "trouble 1\ntrouble 2\n"


def test_stopped_job_goes_on_and_its_end_by_a_signal_is_negative(
    traces: JobTraces, tmp_path: Path
) -> None:
    job = Incarnation(["sh", "-c", "kill -STOP $$; kill -USR1 $$"], traces, tmp_path)
    os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WNOWAIT)
    assert job.exit_code is None

    job.go_on()

    assert _end(job) == -signal.SIGUSR1


def test_job_is_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(
    traces: JobTraces, tmp_path: Path
) -> None:
    job = Incarnation(["sleep", "600"], traces, tmp_path)

    session = os.getsid(job.pid)

    traces.kill_all()
    assert session == job.pid
    assert _end(job) == -signal.SIGKILL


def test_command_line_is_that_of_a_user_who_types_run() -> None:
    command = run_command(Path("/out/run"), ("-n", "2", "train.py", "--run-dir", "mine"))

    assert command[0] == sys.executable
    words = ("run", "--run-dir", "/out/run", "-n", "2", "train.py", "--run-dir", "mine")
    assert command[-len(words) :] == words
