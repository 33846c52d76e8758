"""A script that resumes by itself, from its newest file, loses no epoch through a relaunch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = """
import glob, json, os
import keras, numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
os.makedirs("saved", exist_ok=True)
start = 0
for name in sorted(glob.glob("saved/*.h5")):
    model.load_weights(name)
    start = int(os.path.basename(name)[:3])
saves = keras.callbacks.ModelCheckpoint("saved/{epoch:03d}.weights.h5", save_weights_only=True)
history = model.fit(x, x[:, :1], batch_size=8, epochs=4, initial_epoch=start, callbacks=[saves])
print(json.dumps([start, history.epoch, history.history["loss"]]))
"""
"""Four epochs of four steps."""


def train(directory: Path, *faults: str) -> JobRun:
    directory.mkdir()
    script = directory.parent / "train.py"
    script.write_text(SCRIPT)
    request = JobRequest(
        script=script,
        run_dir=directory / "run",
        workers=2,
        faults=faults,
        options=("--threads", "1", "--save-every", "2"),
        directory=directory,
    )
    with start_job(request, timeout_s=300) as running:
        job = running.wait()
    assert job.exit_code == 0, job.stderr
    return job


def test_relaunch_goes_on_in_the_epochs_that_the_run_began_with(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "undisturbed")
    struck = train(tmp_path / "struck", "kill worker=0 step=11", "kill worker=1 step=11")

    one, other = (json.loads(job.stdout.splitlines()[-1]) for job in (undisturbed, struck))
    assert (one[0], other[0]) == (0, 2)
    assert one[1:] == other[1:]
    assert one[1] == [0, 1, 2, 3]
    assert struck.sha256 == undisturbed.sha256
    assert "initial_epoch=2, which the script has now, has no effect" in struck.stderr
