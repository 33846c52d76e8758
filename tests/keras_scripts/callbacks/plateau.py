"""The learning rate falls where the loss stands still; a log writes it down."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(42)
random = np.random.default_rng(42)
x = random.normal(size=(90, 5)).astype("float32")
y = (x.sum(axis=1, keepdims=True) + random.normal(size=(90, 1))).astype("float32")

model = keras.Sequential([keras.Input((5,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.15, momentum=0.8), loss="mae")

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    x[:72],
    y[:72],
    batch_size=16,
    epochs=6,
    validation_data=(x[72:], y[72:]),
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05, cooldown=1),
        keras.callbacks.CSVLogger("log.csv", separator=";"),
        keras.callbacks.TerminateOnNaN(),
    ],
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
