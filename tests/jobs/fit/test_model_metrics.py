"""What callbacks read from the model's metrics is what plain Keras holds at that moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "scripts" / "callbacks" / "reading_metrics.py"
FAULTS = ("kill worker=0 step=11", "kill worker=1 step=11")
"""All die in the last epoch of the second training; the first one is only restored then."""


def seen(stdout: str) -> list[list[Any]]:
    (line,) = (line for line in stdout.splitlines() if '"seen"' in line)
    found: list[list[Any]] = json.loads(line)["seen"]
    return found


@pytest.mark.extended
def test_metrics_are_those_of_plain_keras_at_each_hook(tmp_path: Path) -> None:
    """The hooks of test_stopped_epoch.py have the logs of plain Keras, through deaths too."""
    plain = subprocess.run([sys.executable, SCRIPT], check=True, capture_output=True, text=True)
    struck = run_job(
        SCRIPT,
        run_dir=tmp_path / "run",
        workers=2,
        microbatches=2,
        options=("--threads", "1", "--save-every", "1"),
        faults=FAULTS,
    )

    assert struck.exit_code == 0, struck.stderr
    assert len(struck.events("failure")) == 2
    wanted, found = seen(plain.stdout), seen(struck.stdout)
    assert [line[0] for line in found] == [line[0] for line in wanted]
    for ours, kerass in zip(found, wanted, strict=True):
        assert ours[1:] == pytest.approx(kerass[1:], abs=2e-3), (ours, kerass)
