"""A script that catches whatever ends its ``fit``, and goes on.

``stop``: it catches everything twice, then claims success.  ``trial``: a callback raises on one
worker alone, at the end of its second epoch.  The script catches that, and never ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

mistake, folder = sys.argv[1], Path(sys.argv[2])


class Breaks(keras.callbacks.Callback):
    """Raises on the worker that comes first."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch == 1:
            try:
                os.close(os.open(folder / "broken", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            raise ValueError("a trial that fails")


x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
if mistake == "trial":
    try:
        model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[Breaks()])
    except ValueError:
        while True:
            time.sleep(60)
else:
    for _ in range(2):
        try:
            model.fit(x, x[:, :1], batch_size=8, epochs=100_000, verbose=0)
        except Exception:
            print("caught an Exception")
        except BaseException as error:
            print("caught", type(error).__name__)
    print("done")
    sys.exit(0)
