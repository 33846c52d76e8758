"""The next value of a weather record from windows of its past, cut by Keras's own helper."""

import json

import keras
import numpy as np
from keras import layers

PAST = 12

keras.utils.set_random_seed(26)
random = np.random.default_rng(26)
hours = np.arange(260)
record = np.stack([np.sin(hours / 6), np.cos(hours / 11)], axis=1)
record = (record + 0.1 * random.normal(size=record.shape)).astype("float32")


def windows(values):
    return keras.utils.timeseries_dataset_from_array(
        values[:-PAST], values[PAST:, 0], sequence_length=PAST, batch_size=32
    )


train, validation = windows(record[:200]), windows(record[200:])

model = keras.Sequential(
    [keras.Input((PAST, 2)), layers.GRU(8), layers.Dense(4, activation="relu"), layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])

history = model.fit(
    train,
    epochs=4,
    validation_data=validation,
    callbacks=[
        keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=3),
        keras.callbacks.ModelCheckpoint(
            "best.weights.h5", monitor="val_loss", save_weights_only=True, save_best_only=True
        ),
        keras.callbacks.CSVLogger("log.csv"),
    ],
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
np.savez("predictions.npz", values=model.predict(validation, verbose=0))
model.save_weights("model.weights.h5")
