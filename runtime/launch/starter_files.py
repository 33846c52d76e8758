"""The files that ``holdfast init`` writes: a training that runs as it is, and its options."""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.errors import UsageError

_TRAIN = '''"""Train a small network: a first script, to be changed.

    python train.py                          alone, as plain Keras
    holdfast run -n 2 train.py               on two workers
    holdfast run -n 2 train.py --epochs 20   with an argument of its own
"""

import argparse

import keras
import numpy as np

import holdfast

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
options = parser.parse_args()

# All workers run this script.  Seeds let two new runs be alike, too.
keras.utils.set_random_seed(1)

# Put your own data here.  Arrays, tf.data and Keras's generators all work.
x = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)

# batch_size is that of all workers together: each one computes its part.
# Progress is saved meanwhile; the same command again goes on where it was.
model.fit(x, y, batch_size=64, epochs=options.epochs, validation_split=0.2)

# One worker prints and writes for all.
if holdfast.is_first():
    loss, accuracy = model.evaluate(x, y, verbose=0)
    print(f"loss {loss:.4f}, accuracy {accuracy:.4f}")
'''

_TOML = """# Options of `holdfast run`, by the names of their flags.  A flag comes first.
# `holdfast run --show-config train.py` prints all of them, and where each comes from.

[run]
# workers = 2            # as -n 2
# run-dir = "my-run"     # where checkpoints and journal are; without it holdfast-train
# save-every = "10min"   # or a number of updates, "epoch" or "auto"
# microbatches = 4       # equal parts of each batch: runs with the same ones have the same bytes
# hosts = "a:4,b:4"      # several machines
# max-restarts = 3       # relaunches of a job that has lost all workers
"""

FILES = {"train.py": _TRAIN, "holdfast.toml": _TOML}


def write_starter_files(directory: Path) -> list[Path]:
    """Write the files, and overwrite none; return their paths.

    Raises:
        UsageError: one of them is there, or the directory cannot be written.
    """
    paths = [directory / name for name in FILES]
    there = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if there:
        raise UsageError(
            f"{' and '.join(there)} would be overwritten; "
            "move it away, or name another directory: holdfast init DIR"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            with path.open("x", encoding="utf-8") as file:
                file.write(FILES[path.name])
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error}; name another one") from error
    return paths
