"""A callback of one's own, with counters, lists and a decision that depends on the past."""

import json

import keras
import numpy as np
from keras import layers


class Diary(keras.callbacks.Callback):
    """Keeps losses of batches, lowers the rate after two bad epochs, and stops after the third."""

    def __init__(self):
        super().__init__()
        self.batches = 0
        self.batch_losses = []
        self.best = float("inf")
        self.bad = 0
        self.rates = {}

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.batch_losses.append(float(logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.rates[str(epoch)] = float(self.model.optimizer.learning_rate)
        if logs["val_loss"] < self.best:
            self.best = logs["val_loss"]
        else:
            self.bad += 1
        if self.bad == 2:
            self.model.optimizer.learning_rate = self.rates[str(epoch)] / 2
        if self.bad == 3:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        with open("diary.json", "w") as file:
            json.dump([self.batches, self.batch_losses, self.best, self.bad, self.rates], file)


keras.utils.set_random_seed(43)
random = np.random.default_rng(43)
x = random.normal(size=(80, 6)).astype("float32")
y = (x[:, :2].sum(axis=1, keepdims=True) + random.normal(size=(80, 1))).astype("float32")

model = keras.Sequential([keras.Input((6,)), layers.Dense(24, activation="relu"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), loss="mse")

epochs = []
remember = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    x[:60],
    y[:60],
    batch_size=16,
    epochs=10,
    validation_data=(x[60:], y[60:]),
    callbacks=[Diary(), remember],
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
