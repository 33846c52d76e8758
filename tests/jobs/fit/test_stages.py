"""A script calls ``fit`` twice, on two models: both end with the same bytes through deaths.

The first training has 10 steps (2 epochs), the second stops itself after 3 epochs of 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import JobRun, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "two_fits.py"
LAST_STEP = 10 + 9


def train(run_dir: Path, workers: int, *faults: str) -> JobRun:
    job = run_job(
        SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=4,
        faults=faults,
        options=("--threads", "1", "--save-every", "2"),
        timeout_s=300,
    )
    assert job.exit_code == 0, job.stderr
    assert job.leftovers == ()
    return job


def printed(job: JobRun) -> Any:
    """Return what the script printed, which only one worker may do."""
    lines = [line for line in job.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 1, job.stdout
    return json.loads(lines[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the undisturbed run."""
    return tmp_path_factory.mktemp("undisturbed") / "run"


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> JobRun:
    return train(folder, 1)


def test_second_training_goes_on_where_the_first_has_ended(undisturbed: JobRun) -> None:
    first, second, *_ = printed(undisturbed)

    assert [len(first["loss"]), len(second["loss"]), len(second["val_loss"])] == [2, 3, 3]
    assert undisturbed.report.completed_step == LAST_STEP
    assert {record["step"] for record in undisturbed.events("completed")} == {10, LAST_STEP}


@pytest.mark.extended  # the test beside it has the second training
def test_first_worker_and_then_all_die_in_the_second_training(
    undisturbed: JobRun, tmp_path: Path
) -> None:
    faults = ("kill worker=0 step=13", "kill worker=1 step=15", "kill worker=2 step=15")
    job = train(tmp_path / "run", 3, *faults)
    again = train(tmp_path / "run", 2)

    assert len(job.report.failures) == 3
    assert job.sha256 == undisturbed.sha256
    assert printed(job) == printed(again) == printed(undisturbed)
    restored = {record["step"] for record in again.events("restored")}
    assert {10, LAST_STEP} < restored  # and a step between, when all had died
    assert all(10 < step < 15 for step in restored - {10, LAST_STEP})
