"""A search: callbacks, losses and batches of some trials raise, and the search goes on.

The trials are the arguments.  Each trial's end is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def search() -> list[str]:
    class Pruned(Exception):
        pass

    class Prune(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            assert logs is not None
            if logs["loss"] > 6.0:
                raise Pruned(epoch, f"{logs['loss']:.3f}")

    ends = []
    for trial in sys.argv[1:]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        rate = 0.0001 if trial == "pruned" else 0.05
        model.compile(keras.optimizers.SGD(rate), failing if trial == "loss" else "mse")
        data = (batches(),) if trial == "batch" else (x, y)
        terms = {"steps_per_epoch": 4} if trial == "batch" else {"batch_size": 16}
        try:
            history = model.fit(
                *data, epochs=3, shuffle=False, verbose=0, callbacks=[Prune()], **terms
            )
            ends.append(f"{history.history['loss'][-1]:.4f}")
        except Pruned as error:
            ends.append("pruned at epoch {}: {}".format(*error.args))
        except ValueError as error:
            ends.append(f"failed: {error}")
    return ends


def failing(true: object, predicted: object) -> object:
    raise ValueError("no such loss")


def batches() -> Iterator[tuple[object, object]]:
    for first in (0, 16, 32, 48, 0):
        yield x[first : first + 16], y[first : first + 16]
    raise ValueError("no such batch")


print("ends:", *search(), sep=" | ")
