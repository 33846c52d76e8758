"""A script that catches an error of all workers, which ends its ``fit``, goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import JobRequest, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.mark.extended
def test_search_goes_on_after_trials_that_fail_through_deaths_and_a_relaunch(
    tmp_path: Path,
) -> None:
    """Errors that are caught are kept in tests/runtime/keras/test_callback_run.py."""
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
