"""Exit code 0 means that the result is written: by the first worker, or by the next first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parent / "scripts" / "writing.py"


def _run(folder: Path, mistake: str) -> JobRun:
    request = JobRequest(
        script=SCRIPT,
        run_dir=folder / "run",
        workers=3,
        argv=[mistake, str(folder / "model")],
        options=["--threads", "1"],
    )
    with start_job(request) as job:
        return job.wait()


def test_result_that_the_first_worker_died_over_is_written_by_the_next(tmp_path: Path) -> None:
    job = _run(tmp_path, "die")

    assert job.exit_code == 0, job.stderr
    assert (tmp_path / "model").read_text() == job.sha256
    assert len(job.report.relaunches) == 1
    assert job.leftovers == ()


def test_job_whose_first_worker_could_not_write_has_failed(tmp_path: Path) -> None:
    """The other workers have left in peace; they had nothing to write."""
    job = _run(tmp_path, "raise")

    assert job.exit_code == 1, job.stderr
    assert "OSError: no space left for the model" in job.stderr
    assert "Traceback" in job.stderr
    assert job.report.relaunches == ()
    assert job.leftovers == ()
