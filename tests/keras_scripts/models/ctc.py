"""Reading short words from strips of pixels, with the loss of connectionist classification."""

import json

import keras
import numpy as np
from keras import layers

LETTERS, WORD, WIDTH = 5, 3, 12

keras.utils.set_random_seed(15)
random = np.random.default_rng(15)
shapes = random.normal(size=(LETTERS + 1, 6))
words = random.integers(1, LETTERS + 1, size=(70, WORD))  # 0 is the blank of CTC
strips = np.repeat(shapes[words], WIDTH // WORD, axis=1)
strips = (strips + 0.3 * random.normal(size=strips.shape)).astype("float32")

model = keras.Sequential(
    [
        keras.Input((WIDTH, 6)),
        layers.Conv1D(12, 3, padding="same", activation="relu"),
        layers.Bidirectional(layers.GRU(6, return_sequences=True)),
        layers.Dense(LETTERS + 1),
    ]
)
model.compile(keras.optimizers.Adam(0.01), loss=keras.losses.CTC())

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    strips[:60],
    words[:60],
    batch_size=12,
    epochs=3,
    validation_data=(strips[60:], words[60:]),
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
