"""A script that catches what ends its ``fit``.

An error of all workers is its own business: it goes on.  After any other error it claims no
success, and nobody waits for it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPTS = Path(__file__).parents[1] / "scripts"


def request(tmp_path: Path, mistake: str, workers: int) -> JobRequest:
    return JobRequest(
        script=SCRIPTS / "catching.py",
        run_dir=tmp_path / "run",
        workers=workers,
        microbatches=2,
        argv=[mistake, str(tmp_path)],
        options=["--threads", "1", "--heartbeat-timeout", "3"],
    )


@pytest.mark.extended
def test_search_goes_on_after_trials_that_fail_through_deaths_and_a_relaunch(
    tmp_path: Path,
) -> None:
    """Errors that are caught are kept in tests/runtime/callbacks/test_kept_error.py."""
    search = JobRequest(
        script=SCRIPTS / "search.py",
        run_dir=tmp_path / "run",
        workers=2,
        microbatches=2,
        faults=["kill worker=1 step=14", "kill worker=0 step=25"],
        argv=["ok", "pruned", "loss", "batch", "ok"],
        options=["--threads", "1", "--save-every", "1"],
    )
    with start_job(search) as running:
        job = running.wait()

    assert job.exit_code == 0, job.stderr
    ends = (
        "0.7108 | pruned at epoch 0: 7.842 | failed: no such loss | failed: no such batch | 0.7108"
    )
    assert f"ends: | {ends}" in job.stdout.splitlines()
    restored = [record["step"] for record in job.events("restored")]
    assert restored[:3] == [12, 16, 21]
    assert restored[3] in range(22, 25)
    assert (job.report.completed_step, len(job.report.relaunches)) == (33, 1)
    assert job.leftovers == ()


@pytest.mark.extended
def test_stop_that_the_script_catches_is_a_stop(tmp_path: Path) -> None:
    """In test_deaths.py a script catches the stop that makes room, for ever."""
    with start_job(request(tmp_path, "stop", 2)) as running:
        running.wait_for("step", step=3)
        running.signal(signal.SIGTERM)
        job = running.wait()

    assert job.exit_code == 75, job.stderr
    assert job.stdout.splitlines() == ["caught StopRequested"] * 2 + ["done"]
    (stopped,) = {record["step"] for record in job.events("stopped")}
    assert job.report.checkpoints[-1].step == stopped
    assert job.leftovers == ()


@pytest.mark.extended
def test_worker_whose_script_catches_an_error_alone_is_given_up(tmp_path: Path) -> None:
    """Above, all catch; one alone is fenced in tests/runtime/host/test_hosted_worker.py."""
    job = run(tmp_path)

    assert job.exit_code == 0, job.stderr
    (failure,) = job.report.failures
    assert (failure.limit, failure.fenced) == ("failed", True)
    caught = "caught the error of its training: ValueError: a trial that fails"
    assert caught in failure.cause
    assert caught in job.stderr
    assert job.report.completed_step == 6
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def run(tmp_path: Path) -> JobRun:
    with start_job(request(tmp_path, "trial", 3)) as running:
        return running.wait()
