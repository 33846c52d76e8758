"""Scripts that load what callbacks have saved go on through a relaunch as if nothing had happened.

One resumes by itself, from its newest file.  The other one loads the best weights of a training
before the next one, which saves its own to the same file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from script_jobs import train_text

from holdfast.testing import JobRun

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


BEST = """
import json
import keras, numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse")

def fit():
    best = keras.callbacks.ModelCheckpoint(
        "best.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True
    )
    return model.fit(x, x[:, :1], batch_size=8, epochs=2, callbacks=[best]).history["loss"]

first = fit()
model.load_weights("best.weights.h5")
loaded = [float(weight.sum()) for weight in model.get_weights()]
print(json.dumps([loaded, first, fit()]))
"""
"""Two trainings of eight steps."""


def train(directory: Path, text: str, *faults: str, every: int = 2) -> JobRun:
    directory.mkdir()
    job = train_text(text, directory, *faults, options=("--save-every", str(every)))
    assert job.exit_code == 0, job.stderr
    return job


@pytest.mark.extended
def test_relaunch_goes_on_in_the_epochs_that_the_run_began_with(tmp_path: Path) -> None:
    """All die and come back in test_script_files.py; epochs are counted in tests/runtime/keras."""
    undisturbed = train(tmp_path / "undisturbed", SCRIPT)
    struck = train(tmp_path / "struck", SCRIPT, "kill worker=0 step=11", "kill worker=1 step=11")

    one, other = (json.loads(job.stdout.splitlines()[-1]) for job in (undisturbed, struck))
    assert (one[0], other[0]) == (0, 2)
    assert one[1:] == other[1:]
    assert one[1] == [0, 1, 2, 3]
    assert struck.sha256 == undisturbed.sha256
    assert "initial_epoch=2, which the script has now, has no effect" in struck.stderr


@pytest.mark.extended
def test_relaunch_loads_what_the_script_loaded_before_the_next_training(tmp_path: Path) -> None:
    """All die in the second training, which has written the file and has no checkpoint yet.

    In one process, kept loads are those of tests/runtime/script/test_kept_loads.py.
    """
    undisturbed = train(tmp_path / "undisturbed", BEST, every=100)
    faults = ("kill worker=0 step=14", "kill worker=1 step=14")
    struck = train(tmp_path / "struck", BEST, *faults, every=100)

    one, other = (json.loads(job.stdout.splitlines()[-1]) for job in (undisturbed, struck))
    assert len(struck.report.relaunches) == 1
    assert other == one
    assert struck.sha256 == undisturbed.sha256
