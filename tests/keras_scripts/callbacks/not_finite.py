"""A rate that is far too large: the training ends well, in the middle of an epoch."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(47)
random = np.random.default_rng(47)
x = random.normal(size=(64, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)

model = keras.Sequential([keras.Input((5,)), layers.Dense(6, activation="relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), loss="mse")

last = []
# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    x,
    y,
    batch_size=8,
    epochs=5,
    callbacks=[
        keras.callbacks.LearningRateScheduler(lambda epoch: 1e30 if epoch == 2 else 0.01),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.LambdaCallback(on_train_end=lambda logs: last.append(logs["loss"])),
    ],
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(
        {
            "finite": history.history["loss"][:2],
            "all": [bool(np.isfinite(loss)) for loss in history.history["loss"]],
            "epochs": history.epoch,
            "last": bool(np.isfinite(last[-1])),
            "weights": [bool(np.isfinite(w).all()) for w in model.get_weights()],
        },
        file,
    )
