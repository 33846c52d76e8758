"""Train on an HDF5 file that need not fit into memory.

    python examples/06_hdf5_data.py --write
    holdfast run -n 2 examples/06_hdf5_data.py

The file is written once, before the run: all workers of a run come to each line of the script at
the same time.  ``HDF5Data`` takes the place of arrays in ``fit``.  Each worker reads its own
samples from the file, by their numbers, while the step before is computed.  The order is shuffled
over the whole file, and a run that resumes reads nothing again:

    holdfast run -n 2 --fresh --inject "kill worker=1 step=50" examples/06_hdf5_data.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import keras
import numpy as np

from holdfast import HDF5Data

PATH = Path("measurements.h5")
SAMPLES, FEATURES = 20_000, 50


def write(path: Path) -> None:
    """Make the file, in pieces, as a simulation would."""
    random = np.random.default_rng(9)
    wanted = random.normal(size=(FEATURES, 1))
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (SAMPLES, FEATURES), "f4", chunks=(500, FEATURES))
        y = file.create_dataset("y", (SAMPLES, 1), "f4")
        for start in range(0, SAMPLES, 5000):
            piece = random.normal(size=(5000, FEATURES))
            x[start : start + 5000] = piece
            y[start : start + 5000] = np.tanh(piece @ wanted / 5)


if "--write" in sys.argv:
    write(PATH)
    sys.exit()

keras.utils.set_random_seed(10)
model = keras.Sequential(
    [
        keras.layers.Dense(64, activation="tanh"),
        keras.layers.Dense(1),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(3e-3), loss="mse", metrics=["mae"])
model.fit(HDF5Data(PATH, "x", "y"), batch_size=200, epochs=4)
