"""Whatever a plain ``fit`` calls of what a script overrides is called here too, on all workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "pipelines"
OPTIONS = ("--threads", "1", "--heartbeat-timeout", "30")

OF_STEP = ("Model.train_step", "Model.test_step", "Model.trainable_weights", "Optimizer.scale_loss")
"""Only the second model overrides these; Keras's own step runs as it stands then."""
REFUSED = ("Model.distribute_strategy", "Model.evaluate")
"""Each with its sentence in tests/runtime/model/custom/test_own_hooks.py."""

Told = dict[str, dict[str, list[str]]]


def told(stdout: str) -> Told:
    found: Told = {"SEEN": {}, "LOSS": {}}
    for line in stdout.splitlines():
        kind, *rest = line.split(" ", 2)
        if kind in found:
            found[kind][rest[0]] = json.loads(rest[1])
    return found


def in_plain_python(script: Path, *arguments: str) -> str:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def plain() -> Told:
    """What Keras calls by itself."""
    return told(in_plain_python(SCRIPTS / "overrides.py", "all"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the first of two workers calls."""
    run_dir = tmp_path_factory.mktemp("overrides") / "run"
    job = run_job(SCRIPTS / "overrides.py", run_dir=run_dir, workers=2, options=OPTIONS)
    assert job.exit_code == 0, job.stderr
    return told(job.stdout)


def test_what_keras_calls_is_called(plain: Told, ours: Told) -> None:
    assert {*OF_STEP, *REFUSED} <= {*plain["SEEN"]["own"]}
    for how in ("plain", "own"):
        assert {*plain["SEEN"][how]} - {*ours["SEEN"][how]} == {*REFUSED}


def test_figures_are_those_of_plain_keras(plain: Told, ours: Told) -> None:
    for how in ("plain", "own"):
        assert ours["LOSS"][how] == {
            name: pytest.approx(values, rel=1e-5) for name, values in plain["LOSS"][how].items()
        }
