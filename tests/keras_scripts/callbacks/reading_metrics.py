"""A callback reads the model's metrics, and measures and predicts, at each hook."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(5)
random = np.random.default_rng(1)
x = random.normal(size=(48, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")


class Reader(keras.callbacks.Callback):
    def __init__(self, measures):
        super().__init__()
        self.measures = measures
        self.seen = []

    def note(self, hook):
        found = self.model.get_metrics_result()
        self.seen.append([hook, *(round(float(value), 4) for value in found.values())])

    def on_epoch_begin(self, epoch, logs=None):
        if epoch:  # Keras makes them with the first batch
            self.note("epoch begins")

    def on_test_begin(self, logs=None):
        self.note("test begins")

    def on_test_end(self, logs=None):
        self.note("test ends")

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch ends")
        if self.measures:
            self.model.predict(x[:4], verbose=0)
            self.note("predicted")
            self.model.evaluate(x[:8], y[:8], verbose=0)
            self.note("evaluated")

    def on_train_end(self, logs=None):
        self.note("training ends")


class BatchReader(Reader):
    def on_train_batch_begin(self, batch, logs=None):
        self.note("batch begins")

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch ends")


layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
model = keras.Sequential([keras.Input((6,)), *layers])
model.compile(
    keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()]
)
lines = []
for number, validation in enumerate([(x[:16], y[:16]), None]):
    reader = BatchReader(False) if number else Reader(True)
    model.fit(
        x,
        y,
        batch_size=16,
        epochs=2,
        callbacks=[reader],
        shuffle=False,
        verbose=0,
        validation_data=validation,
    )
    reader.note("after fit")
    lines += reader.seen
with open("history.json", "w") as file:
    json.dump(lines, file)
