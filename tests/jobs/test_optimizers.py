"""With each optimizer, two workers and a death end with the bytes of one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import JobRun, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parent / "scripts" / "optimizers_keras.py"
OPTIMIZERS = (
    *("nesterov", "schedule", "averages", "global norm", "accumulation", "scale", "several"),
    *("own", "rmsprop", "lamb", "adafactor", "lion", "ftrl", "muon"),
)


def run(run_dir: Path, optimizer: str, workers: int, faults: tuple[str, ...] = ()) -> JobRun:
    job = run_job(
        SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=2,
        faults=faults,
        argv=(optimizer,),
        options=("--threads", "1", "--heartbeat-timeout", "20"),
        timeout_s=300,
    )
    assert job.exit_code == 0, job.stderr
    return job


@pytest.mark.extended  # test_keras_jobs.py has one optimizer, test_compiled_updates.py all updates
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_and_deaths_do_not_count(tmp_path: Path, optimizer: str) -> None:
    death = ("kill worker=0 step=5 site=vote",)

    one = run(tmp_path / "one", optimizer, 1)
    two = run(tmp_path / "two", optimizer, 2)
    struck = run(tmp_path / "struck", optimizer, 2, death)

    assert two.sha256 == one.sha256
    assert struck.sha256 == one.sha256
    assert [failure.worker for failure in struck.report.failures] == [0]
