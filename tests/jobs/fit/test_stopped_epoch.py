"""A callback stops a training in the middle of an epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from suite_table import SUITE

from holdfast.testing import JobRequest, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_epoch_that_a_callback_stops_is_validated_as_by_keras(tmp_path: Path) -> None:
    """Epochs with and without validation, and a death in the validation of a stopped one.

    Hooks come as in Keras in tests/runtime/keras/test_callback_run.py.
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
