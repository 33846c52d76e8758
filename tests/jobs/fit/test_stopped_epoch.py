"""A stop in the middle of an epoch, a resume, and another run that begins with the weights."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from suite_table import SUITE

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "plain_fit.py"
STEPS = 300
SAME = ("--threads", "1", "--save-every", "120")


def request(run_dir: Path, workers: int, *options: str) -> JobRequest:
    return JobRequest(
        script=SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=2,
        options=[*SAME, *options],
    )


def train(run_dir: Path, workers: int, *options: str) -> JobRun:
    with start_job(request(run_dir, workers, *options)) as running:
        job = running.wait()
    assert job.exit_code == 0, job.stderr
    return job


def history(job: JobRun) -> Any:
    (line,) = (line for line in job.stdout.splitlines() if line.startswith("{"))
    return json.loads(line)


@pytest.mark.extended
@pytest.mark.timeout(400)
def test_history_of_a_stopped_run_is_whole_and_its_weights_begin_another(tmp_path: Path) -> None:
    """Runs stop and go on in test_halts.py; weights begin a run in test_import_keras.py."""
    undisturbed = train(tmp_path / "undisturbed", 1)
    run_dir = tmp_path / "run"
    with start_job(request(run_dir, 2)) as running:
        running.wait_for("step", step=STEPS + 5)
        running.signal(signal.SIGTERM)
        stopped = running.wait()

    resumed = train(run_dir, 2)
    another = train(tmp_path / "another", 1, "--initial", str(run_dir))

    assert stopped.exit_code == 75, stopped.stderr
    (step,) = {record["step"] for record in stopped.events("stopped")}
    assert STEPS < step < 2 * STEPS  # validation comes with the second epoch
    assert resumed.sha256 == undisturbed.sha256
    assert history(resumed) == history(undisturbed)
    assert [len(values) for values in history(resumed).values()] == [4, 2]
    (begun,) = another.events("initial_weights")
    assert begun["source"] == str(run_dir)
    assert history(another)["loss"][0] < history(undisturbed)["loss"][1]


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_epoch_that_a_callback_stops_is_validated_as_by_keras(tmp_path: Path) -> None:
    """Epochs with and without validation, and a death in the validation of a stopped one.

    Hooks come as in Keras in tests/runtime/callbacks/test_callback_run.py.
    """
    script = SUITE["stopping"].path
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    subprocess.run([sys.executable, str(script)], cwd=alone, check=True, timeout=200)
    faults = ["kill worker=1 step=6 site=vote attempt=2", "kill worker=0 step=12"]
    trained = JobRequest(
        script=script,
        run_dir="run",
        workers=3,
        microbatches=2,
        faults=faults,
        options=["--threads", "1"],
        directory=together,
    )
    with start_job(trained) as running:
        job = running.wait()

    assert job.exit_code == 0, job.stderr
    assert job.leftovers == ()
    assert [fault["worker"] for fault in job.events("fault")] == [1, 0]
    ours, theirs = (json.loads((path / "history.json").read_text()) for path in (together, alone))
    assert [hooks for hooks, _, _ in ours] == [hooks for hooks, _, _ in theirs]
    assert [epochs for _, epochs, _ in ours] == [epochs for _, epochs, _ in theirs]
    for (_, _, found), (_, _, expected) in zip(ours, theirs, strict=True):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-5), name
