"""A Keras model with statistics, noise, decay, a schedule and metrics ends with the same bytes.

It is compared with one undisturbed worker: 3 epochs of 5 updates (the last
one of each is short), a pass over validation data after each epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import JobRun, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parent / "scripts" / "everything_keras.py"
MICROBATCHES = 6
OPTIONS = ("--threads", "1", "--heartbeat-timeout", "20")
"""Its million weights make it worth while not to copy gradients."""


def train(run_dir: Path, workers: int, *faults: str) -> JobRun:
    job = run_job(
        SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=MICROBATCHES,
        faults=faults,
        options=OPTIONS,
        timeout_s=300,
    )
    assert job.exit_code == 0, job.stderr
    assert all(epoch.exact for epoch in job.report.epochs)
    assert job.leftovers == ()
    return job


@pytest.mark.extended  # test_deaths.py has the sites, ci/keras the deaths of Keras scripts
def test_deaths_at_every_site_of_a_step_leave_the_same_bytes_and_figures(tmp_path: Path) -> None:
    """Five of six workers die, one at each site; the second dies while the first is mourned."""
    faults = (
        "kill worker=0 step=3 site=reduce",
        "kill worker=1 step=3 site=repair",
        "exit worker=2 step=6 site=vote",
        "raise worker=3 step=11 site=apply",
        "segfault worker=4 step=15 site=save",  # the final one, which is never skipped
    )
    undisturbed = train(tmp_path / "undisturbed", 1)

    job = train(tmp_path / "run", 6, *faults)

    found, wanted = job.report, undisturbed.report
    assert job.sha256 == undisturbed.sha256
    assert [(epoch.metrics, epoch.validation) for epoch in found.epochs] == [
        (epoch.metrics, epoch.validation) for epoch in wanted.epochs
    ]
    assert sorted(failure.worker for failure in found.failures) == [0, 1, 2, 3, 4]
    assert found.relaunches == ()
    assert (wanted.steps, wanted.samples, len(wanted.epochs)) == (15, 930, 3)
    assert set(wanted.epochs[-1].validation) == {"loss", "accuracy", "top3"}
    assert wanted.epochs[-1].metrics["accuracy"] > wanted.epochs[0].metrics["accuracy"]
