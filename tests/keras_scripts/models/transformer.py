"""A block of attention that classifies sequences of tokens; built from layers of its own."""

import json

import keras
import numpy as np
from keras import layers

LENGTH, WORDS, WIDTH = 10, 40, 16


class TokensAndPositions(layers.Layer):
    def __init__(self):
        super().__init__()
        self.tokens = layers.Embedding(WORDS, WIDTH)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def call(self, x):
        return self.tokens(x) + self.positions(keras.ops.arange(LENGTH))


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, WIDTH // 2)
        self.feed = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(WIDTH)])
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, x):
        x = self.first(x + self.attention(x, x))
        return self.second(x + self.feed(x))


keras.utils.set_random_seed(12)
random = np.random.default_rng(12)
tokens = random.integers(1, WORDS, size=(120, LENGTH))
labels = (tokens[:, :3].sum(axis=1) > 1.5 * WORDS).astype("int32")

inputs = keras.Input((LENGTH,), dtype="int32")
x = Block()(TokensAndPositions()(inputs))
x = layers.GlobalAveragePooling1D()(x)
model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

train, test = slice(0, 100), slice(100, 120)
# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    tokens[train],
    labels[train],
    batch_size=16,
    epochs=3,
    validation_data=(tokens[test], labels[test]),
    shuffle=False,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
