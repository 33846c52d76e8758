"""A file system that fails while a job resumes: the job waits, and throws nothing away."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from workload import EVEN, Undisturbed, assert_whole, request_of

from holdfast.runtime.errors import ExitCode
from holdfast.testing import JobRequest, RunningJob, start_job

pytestmark = pytest.mark.mpi

SCRIPT = Path(__file__).parents[1] / "scripts" / "disks" / "outage.py"
HALF = replace(EVEN, epochs=2)
WAITS = "cannot be read just now"
BOUND_S = 60.0


def _request(run_dir: Path, epochs: int, patience_s: float, workers: int = 3) -> JobRequest:
    plain = request_of(replace(EVEN, epochs=epochs), run_dir, workers=workers)
    outage = run_dir.parent / "outage"
    argv = [*plain.argv, "--outage", str(outage), "--patience", str(patience_s)]
    return replace(plain, script=SCRIPT, argv=argv)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that has come half the way."""
    path = tmp_path / "run"
    with start_job(_request(path, HALF.epochs, 60.0)) as running:
        assert running.wait().exit_code == ExitCode.DONE
    return path


def _wait_for_a_wait(running: RunningJob) -> None:
    until = time.monotonic() + BOUND_S
    while WAITS not in running.stderr:
        assert time.monotonic() < until, running.stderr
        time.sleep(0.02)


def test_outage_of_one_worker_is_outlived_by_all(run_dir: Path, undisturbed: Undisturbed) -> None:
    outage = run_dir.parent / "outage"
    outage.write_text("1")
    with start_job(_request(run_dir, EVEN.epochs, 60.0)) as running:
        _wait_for_a_wait(running)
        outage.unlink()
        job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert job.report.rejected_checkpoints == job.report.relaunches == ()
    assert job.stderr.count(WAITS) == 1


@pytest.mark.extended  # an outage that all outlive is read above
def test_death_in_a_wait_is_repaired(run_dir: Path, undisturbed: Undisturbed) -> None:
    outage = run_dir.parent / "outage"
    outage.write_text("0 1 2")
    with start_job(_request(run_dir, EVEN.epochs, 60.0)) as running:
        _wait_for_a_wait(running)
        victim = next(p for p, name in running.processes().items() if name == "holdfast-w1")
        os.kill(victim, signal.SIGKILL)
        running.wait_for("failure")
        outage.unlink()
        job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [failure.worker for failure in job.report.failures] == [1]
    assert job.report.relaunches == ()


@pytest.mark.extended  # an outage that all outlive is read above
def test_job_that_waits_stops_when_it_is_asked_to(run_dir: Path) -> None:
    (run_dir.parent / "outage").write_text("2")
    with start_job(_request(run_dir, EVEN.epochs, 600.0)) as running:
        _wait_for_a_wait(running)
        running.signal(signal.SIGTERM)
        job = running.wait()

    assert job.exit_code == ExitCode.STOPPED_EARLY, job.stderr
    assert "nothing is known to be damaged" in job.stderr
