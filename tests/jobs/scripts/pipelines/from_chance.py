"""A generator that is seeded by the process: no two workers see the same batches."""

import os

import keras
import numpy as np


def batches():
    random = np.random.default_rng(int(os.readlink("/proc/self")))
    while True:
        yield random.normal(size=(16, 6)), random.normal(size=16)


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), epochs=2, steps_per_epoch=4, verbose=0)
