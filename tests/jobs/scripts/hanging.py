"""A script that hangs where the file ``hang`` says, for ever, in one of the ways of a script.

The folder of the run is its argument.  Where it hangs it leaves a file of that name.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import holdfast

FOLDER = Path(sys.argv[1])
WHERE = (FOLDER / "hang").read_text()


def reads_a_pipe() -> None:
    """Wait in a system call, for a writer who never comes."""
    pipe = FOLDER / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    pipe.read_bytes()


def computes() -> None:
    """Never end, in Python."""
    while True:
        pass


def catches_all() -> None:
    """Let nothing end the wait."""
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue


def pause(place: str, how: Callable[[], object], *, of_all: bool = True) -> None:
    """Hang here, if this is the place; else only the first worker does."""
    if place == WHERE and (of_all or holdfast.is_first()):
        (FOLDER / place).touch()
        how()


class Batches(keras.utils.PyDataset):
    """Six batches, whose reader may hang."""

    def __init__(self, place: str, at: int) -> None:
        super().__init__()
        self.place, self.at = place, at

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index == self.at:
            pause(self.place, reads_a_pipe, of_all=False)
        rows = slice(8 * index, 8 * index + 8)
        return X[rows], Y[rows]


class Anneals(keras.callbacks.Callback):
    """Changes weights, itself and a file at each epoch's end, and may hang in the middle of it."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.mean = np.zeros(1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["val_loss"])
        self.mean += logs["val_loss"]
        kernel = self.model.layers[-1].kernel
        kernel.assign(kernel * 0.9)
        with open(FOLDER / "log.txt", "a") as log:
            log.write(f"{epoch} {logs['val_loss']:.6f}\n")
        if epoch == 1:
            pause("callback", computes)
        if epoch == 2:
            pause("last callback", catches_all, of_all=False)


def samples() -> Iterator[Any]:
    for row in range(0, 48, 8):
        if row == 24:
            pause("adapt", reads_a_pipe)
        yield X[row : row + 8]


random = np.random.default_rng(3)
X = random.normal(size=(48, 4)).astype("float32")
Y = X[:, :1].copy()
keras.utils.set_random_seed(1)
scale = keras.layers.Normalization()
scale.adapt(tf.data.Dataset.from_generator(samples, output_signature=tf.TensorSpec((8, 4))))
model = keras.Sequential([keras.Input((4,)), scale, keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
anneals = Anneals()
fitted = model.fit(
    Batches("reader", 3),
    epochs=3,
    shuffle=False,
    verbose=0,
    validation_data=Batches("validation", 2),
    callbacks=[anneals],
)
pause("between", threading.Event().wait)
again = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
pause("end", lambda: model.predict(Batches("end", 0), verbose=0), of_all=False)
if holdfast.is_first():
    print(fitted.history, anneals.losses, anneals.mean, again.history)
