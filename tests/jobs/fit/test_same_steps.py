"""All workers and launches build the same step: they draw alike, or are told what differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from extended import shortened

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "unseeded.py"
OPTIONS = ("--threads", "1", "--save-every", "2", "--heartbeat-timeout", "30")
DEATHS = ("kill worker=0 step=5", "kill worker=1 step=5")


@pytest.mark.extended  # test_callbacks.py has the death of all of a fit
def test_draws_without_a_seed_are_alike_through_the_death_of_all(tmp_path: Path) -> None:
    job = run_job(SCRIPT, run_dir=tmp_path / "run", workers=2, options=OPTIONS, faults=DEATHS)

    assert job.exit_code == 0, job.stderr
    assert len(job.events("relaunch")) == 1
    (line,) = (line for line in job.stdout.splitlines() if line.startswith("RATIO"))
    assert float(line.split()[1]) == pytest.approx(1.0, rel=1e-5)


DIFFERENCES = {
    "loss": "build different steps, they differ in a constant of the loss (compile_loss/lambda/mul",
    "units": "build different steps, they differ in units of Dense 'dense': ",
    "weights": "build different steps, they differ in the initial weights of sequential/dense/",
    "callbacks": "workers 0 and 1 differ in the callbacks of fit(): [EarlyStopping, Callback] on ",
    "patience": "build different steps, they differ in patience of EarlyStopping: ",
}


@pytest.mark.extended  # test_step_probe.py has the probe
@pytest.mark.parametrize("word", shortened(tuple(DIFFERENCES), here=("loss",)))
def test_what_is_taken_from_the_pid_is_named_before_a_step(word: str, tmp_path: Path) -> None:
    job = run_job(SCRIPT, run_dir=tmp_path / "run", workers=2, argv=[word], options=OPTIONS)

    assert job.exit_code == 1
    assert DIFFERENCES[word] in job.stderr
    way_out = "give all workers" if word == "callbacks" else "seed every random generator"
    assert way_out in job.stderr.splitlines()[-1]
    assert job.report.relaunches == ()
    assert job.report.steps == (8 if word in {"callbacks", "patience"} else 0)
