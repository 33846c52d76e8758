"""A job that has lost its supervisor gets another one, which decides like the first."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.runtime.system.helper_process import program_command
from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(150)]


@dataclass(frozen=True, kw_only=True)
class Attachment(JobRequest):
    """One ``holdfast attach``."""

    def command(self) -> list[str]:
        """Return the command line."""
        main = "from holdfast.runtime.cli.main import main; main()"
        return [*program_command(main, "attach"), str(self.run_dir)]


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[RunningJob]:
    """A job on 3 workers in the middle of its way, whose supervisor was killed."""
    with start_job(request_of(LONG, tmp_path / "run", workers=3)) as job:
        job.wait_for("checkpoint")
        job.signal(signal.SIGKILL)
        yield job


def _attach(run_dir: Path) -> JobRun:
    with start_job(Attachment(script="", run_dir=run_dir)) as job:
        return job.wait()


def test_attached_job_ends_with_the_same_bytes_and_exit_code(
    tmp_path: Path, undisturbed: Undisturbed, orphan: RunningJob
) -> None:
    attached = _attach(tmp_path / "run")

    assert_whole(attached, LONG, undisturbed(LONG))
    assert "taking over the job in" in attached.stderr
    assert "completed step" in attached.stderr
    assert orphan.wait().leftovers == ()


def test_job_that_was_taken_over_is_relaunched_when_all_workers_die(
    tmp_path: Path, undisturbed: Undisturbed, orphan: RunningJob
) -> None:
    request = request_of(LONG, tmp_path / "run", workers=3)
    with start_job(request) as successor:
        successor.wait_for("taken_over")
        for worker in range(3):
            orphan.signal(signal.SIGKILL, f"holdfast-w{worker}")
        job = successor.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert [relaunch["workers"] for relaunch in job.events("relaunch")] == [[3, 4, 5]]


def test_job_that_was_taken_over_stops_at_a_signal_with_a_checkpoint(
    tmp_path: Path, orphan: RunningJob
) -> None:
    request = request_of(LONG, tmp_path / "run", workers=3)
    with start_job(request) as successor:
        successor.wait_for("taken_over")
        os.kill(successor.pid, signal.SIGTERM)
        job = successor.wait()

    assert job.exit_code == 75, job.stderr
    assert job.events("stopped")


def test_job_that_has_its_supervisor_is_not_taken_over(tmp_path: Path) -> None:
    with start_job(request_of(LONG, tmp_path / "run", workers=2)) as job:
        job.wait_for("step", step=2)

        refused = _attach(tmp_path / "run")

        assert refused.exit_code == 76, refused.stderr
        assert f"pid {job.pid}" in refused.stderr
        assert job.wait().exit_code == 0


def test_directory_without_a_living_job_cannot_be_attached_to(tmp_path: Path) -> None:
    refused = _attach(tmp_path)

    assert refused.exit_code == 2
    assert "no job lives in" in refused.stderr
