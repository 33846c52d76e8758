"""Unusual steps and data give the numbers of plain Keras, through deaths too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "pipelines" / "as_in_keras.py"
DIVIDED = (
    *("going_on", "three_parts", "executions", "batch_of_one", "sum_loss", "no_weights"),
    *("infinite", "endless_generator", "endless_dataset", "unknown_repeated", "limits"),
    *("class_weight", "own_trackers"),
)
OPTIONS = ("--threads", "1", "--save-every", "3", "--heartbeat-timeout", "30")
FAULTS = ("kill worker=1 step=3", "kill worker=0 step=26")
"""A death in the first training, and one of the last worker between a later one's saves."""


def _found(stdout: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in stdout.splitlines():
        if "FOUND " in line:
            found |= json.loads(line.partition("FOUND ")[2])
    return found


def _plain(*names: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), *names]
    return _found(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _approximately(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            of: values if isinstance(values[0], str) else pytest.approx(values, rel=1e-5)
            for of, values in history.items()
        }
        for name, history in found.items()
    }


@pytest.mark.extended
def test_steps_and_data_of_all_kinds_are_those_of_plain_keras_through_deaths(
    tmp_path: Path,
) -> None:
    """In one process they are compared in tests/runtime/keras and tests/runtime/data."""
    job = run_job(
        SCRIPT,
        run_dir=tmp_path / "run",
        workers=2,
        microbatches=2,
        argv=DIVIDED,
        options=OPTIONS,
        faults=FAULTS,
    )

    assert job.exit_code == 0, job.stderr
    assert [record["worker"] for record in job.events("failure")] == [1, 0]
    assert _found(job.stdout) == _approximately(_plain(*DIVIDED))
    assert "the model has no trainable weights" in job.stderr
    assert "class_weight['0'] weighs nothing, as in Keras" in job.stderr
    assert "steps_per_epoch is limited to 3 (keras.config.max_steps_per_epoch())" in job.stderr
