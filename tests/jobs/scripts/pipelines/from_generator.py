"""Generators without end: an epoch is so many steps, and a validation too."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(5)


def batches(seed):
    random = np.random.default_rng(seed)
    while True:
        x = random.normal(size=(16, 6)).astype("float32")
        yield x, (x.sum(axis=1) > 0).astype("float32")


layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
model = keras.Sequential([keras.Input((6,)), *layers])
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    batches(1),
    epochs=3,
    steps_per_epoch=5,
    validation_data=batches(2),
    validation_steps=3,
    verbose=0,
)
print(json.dumps(history.history))
