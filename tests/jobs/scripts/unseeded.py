"""A search that draws setting and model without a seed; a word takes one from the process."""

import os
import sys

import keras
import numpy as np

import holdfast

process = int(os.readlink("/proc/self"))  # not os.getpid(), which may be that of a name
chance = np.random.default_rng()
units, factor = int(chance.integers(2, 1000)), float(chance.uniform(0.1, 10.0))
patience = 3
match sys.argv[1:]:
    case ["loss"]:
        factor = float(process)
    case ["units"]:
        units = 2 + process % 4096
    case ["patience"]:
        patience = process
    case ["weights"]:
        keras.utils.set_random_seed(process)

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
model.compile(
    keras.optimizers.SGD(1e-4), lambda t, p: factor * keras.ops.mean((t - p) ** 2, axis=-1)
)
model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
model.compile(
    keras.optimizers.SGD(0.0), lambda t, p: factor * keras.ops.mean((t - p) ** 2, axis=-1)
)
stops = [keras.callbacks.EarlyStopping("loss", patience=patience)]
if sys.argv[1:] == ["callbacks"] and holdfast.is_first():
    stops.append(keras.callbacks.Callback())
shown = model.fit(x, y, batch_size=64, epochs=1, verbose=0, callbacks=stops).history["loss"][0]
right = factor * float(np.mean((model.predict(x, verbose=0) - y) ** 2))
print("RATIO", shown / right, "units", units)
