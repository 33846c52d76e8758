"""``fit`` in a process that the script has forked is plain Keras, and the job goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from script_jobs import train_text

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = """
import os, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import keras, numpy as np

def fold(number):
    keras.utils.set_random_seed(number)
    x = np.random.default_rng(10).normal(size=(64, 6)).astype("float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    for _ in range(2):
        loss = model.fit(x, x[:, :1], epochs=1, verbose=0, shuffle=False).history["loss"][-1]
        model.save_weights("best.weights.h5")
        model.load_weights("best.weights.h5")
        model.train_on_batch(x, x[:, :1])
    return f"{number} {loss:.4f}"

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        print("folds", *pool.map(fold, range(2)), flush=True)
    child = os.fork()
    if child == 0:
        print("forked", fold(2), flush=True)
        sys.exit(3)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    fold(3)
"""


@pytest.mark.extended  # half a minute of fits in processes
def test_folds_in_processes_of_the_script_are_those_of_plain_keras(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=True, cwd=tmp_path
    )

    job = train_text(SCRIPT, tmp_path)

    assert job.exit_code == 0, job.stderr
    words = ("folds", "forked", "ended")
    said = [line for line in job.stdout.splitlines() if line.startswith(words)]
    assert said == plain.stdout.splitlines()
    assert "fit() in a process that the script has forked is plain Keras" in job.stderr
    assert job.report.failures == ()
    assert job.leftovers == ()
