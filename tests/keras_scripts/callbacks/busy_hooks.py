"""Many callbacks: averages that are swapped, files of each kind, models that hooks load."""

import json

import keras
import numpy as np
from keras import layers


class GoesBack(keras.callbacks.Callback):
    """Saves the weights of each epoch's beginning, and loads them if the epoch was worse."""

    def __init__(self):
        super().__init__()
        self.best = float("inf")
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.model.save_weights("before.weights.h5")

    def on_epoch_end(self, epoch, logs=None):
        self.model.save("now.keras")
        now = keras.models.load_model("now.keras")
        self.seen.append([float(np.abs(weight).sum()) for weight in now.get_weights()])
        if logs["val_loss"] < self.best:
            self.best = logs["val_loss"]
        else:
            self.seen.append("back")
            self.model.load_weights("before.weights.h5")


keras.utils.set_random_seed(45)
random = np.random.default_rng(45)
x = random.normal(size=(80, 6)).astype("float32")
y = (x[:, :2].sum(axis=1, keepdims=True) + random.normal(size=(80, 1))).astype("float32")
data = {
    "x": x[:60],
    "y": y[:60],
    "batch_size": 16,
    "validation_data": (x[60:], y[60:]),
    "shuffle": False,
    "verbose": 2,
}
histories = []

model = keras.Sequential([keras.Input((6,)), layers.Dense(24, activation="relu"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.8), loss="mse")
swapped = [
    keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    keras.callbacks.ModelCheckpoint("averages.weights.h5", save_weights_only=True),
    keras.callbacks.CSVLogger("log.csv", separator=";"),
]
histories.append(model.fit(**data, epochs=3, callbacks=swapped).history)

goes_back = GoesBack()
model.compile(keras.optimizers.SGD(0.2), loss="mse", metrics=["mae"])
weights = {"save_weights_only": True}
files = [
    goes_back,
    keras.callbacks.ModelCheckpoint("best.keras", monitor="val_mae", save_best_only=True),
    keras.callbacks.ModelCheckpoint("{epoch}-{batch}.weights.h5", save_freq=5, **weights),
    keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, cooldown=1, min_lr=0.01),
]
histories.append(model.fit(**data, epochs=5, callbacks=files).history)

stops = keras.callbacks.EarlyStopping(
    baseline=0.01, patience=2, start_from_epoch=2, restore_best_weights=True, verbose=1
)
ends = [stops, keras.callbacks.CSVLogger("log.csv", separator=";", append=True)]
histories.append(model.fit(**data, epochs=9, callbacks=ends).history)

best = keras.models.load_model("best.keras")
with open("history.json", "w") as file:
    evaluated = best.evaluate(x[60:], y[60:], verbose=0)
    stopped = [stops.stopped_epoch, stops.best_epoch, stops.wait]
    json.dump([histories, goes_back.seen, goes_back.best, stopped, evaluated], file)
model.save_weights("model.weights.h5")
