"""Wrong requests: one line names the fault and the remedy, and nothing is left behind.

Here the mistake is in the run directory; mistakes in the script are in ``test_bad_scripts``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from workload import (
    EVEN,
    SCRIPT,
    Undisturbed,
    Workload,
    assert_refused,
    assert_whole,
    request_of,
    run_job,
)

from holdfast.testing import JobRequest, start_job

pytestmark = pytest.mark.mpi


def test_checkpoints_none_of_which_is_valid(tmp_path: Path, undisturbed: Undisturbed) -> None:
    request = request_of(EVEN, tmp_path, workers=2)
    assert run_job(request).exit_code == 0
    for manifest in tmp_path.glob("checkpoints/step-*/MANIFEST.json"):
        manifest.write_text("{}")

    job = run_job(request)
    fresh = run_job(request_of(EVEN, tmp_path, workers=2, options=["--fresh"]))

    assert_refused(job, 70, "none of the", str(tmp_path), "--fresh")
    assert_whole(fresh, EVEN, undisturbed(EVEN))


def test_a_second_job_on_the_same_run_directory(tmp_path: Path) -> None:
    endless = Workload(microbatches=2, samples=160, global_batch=40, epochs=100_000)
    with start_job(request_of(endless, tmp_path, workers=1)) as first:
        first.wait_for("step", step=2)

        second = run_job(request_of(endless, tmp_path, workers=1))

        assert_refused(second, 76, str(tmp_path), f"pid {first.pid}", "--run-dir")
        assert "holdfast-w0" in first.processes().values()


def test_a_script_elsewhere_is_found_by_its_relative_path(tmp_path: Path) -> None:
    script = os.path.relpath(SCRIPT)
    job = run_job(JobRequest(script=script, run_dir=tmp_path, argv=["--epochs", "1"]))

    assert job.exit_code == 0, job.stderr
