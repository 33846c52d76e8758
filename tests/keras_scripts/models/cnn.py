"""A small convolutional network with a validation split, and its evaluation afterwards."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(11)
random = np.random.default_rng(11)
classes = random.integers(3, size=130)
patterns = random.normal(size=(3, 12, 12, 1))
images = (patterns[classes] + random.normal(size=(130, 12, 12, 1))).astype("float32")
labels = keras.utils.to_categorical(classes, 3)

model = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(8, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    images, labels, batch_size=24, epochs=3, validation_split=0.2, shuffle=False, verbose=2
)

loss, accuracy = model.evaluate(images[:50], labels[:50], verbose=0)
with open("history.json", "w") as file:
    json.dump(history.history | {"evaluated": [loss, accuracy]}, file)
model.save_weights("model.weights.h5")
