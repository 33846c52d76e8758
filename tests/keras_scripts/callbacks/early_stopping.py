"""Training ends when the validation loss grows, and the best weights come back."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(41)
random = np.random.default_rng(41)
x = random.normal(size=(70, 10)).astype("float32")
y = (x[:, :1] + random.normal(size=(70, 1)) > 0).astype("float32")  # noise, to overfit on

model = keras.Sequential(
    [keras.Input((10,)), layers.Dense(32, activation="relu"), layers.Dense(1, activation="sigmoid")]
)
model.compile(keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"])

stopping = keras.callbacks.EarlyStopping(
    monitor="val_loss", patience=2, restore_best_weights=True, verbose=1
)
best = keras.callbacks.ModelCheckpoint(
    "best.weights.h5", monitor="val_loss", save_best_only=True, save_weights_only=True
)
# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    x[:50],
    y[:50],
    batch_size=14,
    epochs=12,
    validation_data=(x[50:], y[50:]),
    callbacks=[stopping, best],
    shuffle=False,
    verbose=2,
)

evaluated = model.evaluate(x[50:], y[50:], verbose=0)
with open("history.json", "w") as file:
    json.dump(
        {
            "history": history.history,
            "epochs": history.epoch,
            "stopped": stopping.stopped_epoch,
            "best": stopping.best_epoch,
            "evaluated": evaluated,
        },
        file,
    )
model.save_weights("model.weights.h5")
