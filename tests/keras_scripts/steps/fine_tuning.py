"""A new head on a frozen network, then the whole network at a lower rate; the log goes on."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(34)
random = np.random.default_rng(34)
labels = random.integers(2, size=(100, 1))
images = (random.normal(size=(100, 10, 10, 1)) + labels[:, :, None, None]).astype("float32")

base = keras.Sequential(
    [
        keras.Input((10, 10, 1)),
        layers.Conv2D(6, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.Conv2D(6, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
base.trainable = False
inputs = keras.Input((10, 10, 1))
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(base(inputs)))

# In order, so that each batch is the same one in every run of this script.
common = {"batch_size": 16, "validation_split": 0.2, "shuffle": False, "verbose": 2}
log = keras.callbacks.CSVLogger("log.csv", append=True)

model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
head = model.fit(images, labels, epochs=2, callbacks=[log], **common)

base.trainable = True
for layer in base.layers:  # the statistics of another data set stay as they are
    layer.trainable = not isinstance(layer, layers.BatchNormalization)
model.compile(keras.optimizers.Adam(0.002), "binary_crossentropy", metrics=["accuracy"])
whole = model.fit(
    images, labels, initial_epoch=len(head.epoch), epochs=4, callbacks=[log], **common
)

with open("history.json", "w") as file:
    json.dump({"head": head.history, "whole": whole.history, "epochs": whole.epoch}, file)
model.save_weights("model.weights.h5")
