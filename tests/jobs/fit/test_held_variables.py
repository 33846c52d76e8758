"""Variables that callbacks change and no model owns go on after the death of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import JobRun, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "scripts" / "callbacks" / "annealing.py"
OPTIONS = ("--threads", "1", "--save-every", "2")
FAULTS = ("kill worker=0 step=11", "kill worker=1 step=11")
"""All die in the last epoch of the second training."""


def train(run_dir: Path, workers: int, *faults: str) -> tuple[JobRun, Any]:
    job = run_job(
        SCRIPT, run_dir=run_dir, workers=workers, microbatches=2, options=OPTIONS, faults=faults
    )
    assert job.exit_code == 0, job.stderr
    (line,) = (line for line in job.stdout.splitlines() if '"held"' in line)
    return job, json.loads(line)


@pytest.mark.extended
def test_annealed_weights_and_metrics_go_on_after_the_death_of_all(tmp_path: Path) -> None:
    """In test_callbacks.py all die over other memories; variables are held in one process in
    tests/runtime/keras/test_held_variables.py."""
    alone, held = train(tmp_path / "one", 1)
    struck, held_then = train(tmp_path / "two", 2, *FAULTS)

    assert (struck.sha256, held_then) == (alone.sha256, held)
    assert len(struck.events("failure")) == 2
    assert "Annealing.large (80000 bytes)" in alone.stderr
