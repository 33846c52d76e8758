"""A small model that tags each word of sentences of different lengths; padding is masked."""

import json

import keras
import numpy as np
from keras import layers

WORDS, TAGS, LENGTH = 30, 4, 9

keras.utils.set_random_seed(13)
random = np.random.default_rng(13)
words = random.integers(1, WORDS, size=(96, LENGTH))
lengths = random.integers(2, LENGTH + 1, size=96)
words[np.arange(LENGTH) >= lengths[:, None]] = 0  # padding, which counts in no loss
tags = words % TAGS

model = keras.Sequential(
    [
        keras.Input((LENGTH,), dtype="int32"),
        layers.Embedding(WORDS, 8, mask_zero=True),
        layers.Dense(6, activation="tanh"),
        layers.Dense(TAGS, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
    loss="sparse_categorical_crossentropy",
    weighted_metrics=["accuracy"],
)

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    words[:80],
    tags[:80],
    batch_size=20,
    epochs=3,
    validation_data=(words[80:], tags[80:]),
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
np.savez("predictions.npz", tags=model.predict(words[80:], verbose=0))
model.save_weights("model.weights.h5")
