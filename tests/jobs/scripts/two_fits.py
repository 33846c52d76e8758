"""An ordinary Keras script: it pre-trains an encoder, then trains a classifier on top of it."""

import json
import random
import sys

import keras
import numpy as np

generator = np.random.default_rng(5)
x = generator.normal(size=(150, 6)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype("int32")


def draw() -> float:
    """Draw from all global generators."""
    return random.random() + np.random.normal() + float(keras.random.normal(()))


class Draws(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        draw()


inputs = keras.Input((6,))
code = keras.layers.Dense(4, activation="tanh")(inputs)
decoder = keras.Model(inputs, keras.layers.Dense(6)(code))
decoder.compile("adam", "mse")
first = decoder.fit(x, x, batch_size=32, epochs=2, callbacks=[Draws()], verbose=2)

classifier = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.1)(code)))
classifier.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
stops = keras.callbacks.EarlyStopping("loss", min_delta=1.0, patience=2)
second = classifier.fit(
    x, y, batch_size=50, epochs=9, validation_split=0.2, callbacks=[stops], verbose=2
)

print(json.dumps([first.history, second.history, classifier.evaluate(x, y, verbose=0), draw()]))
if "weights" in sys.argv:
    classifier.save_weights("classifier.weights.h5")
