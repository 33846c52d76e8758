"""Train a small transformer to turn a line of digits around.

    holdfast run -n 2 examples/04_transformer.py

The script is plain Keras and has no holdfast in it: a subclassed model, a schedule with warm-up,
clipping, and a callback that shows what the model has learned.  Callbacks run on one worker, and go
on where they were when that one dies:

    holdfast run -n 2 --fresh --inject "kill worker=0 step=60" examples/04_transformer.py
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

LENGTH, WORDS, WIDTH = 8, 10, 64


class Block(layers.Layer):
    """Attention and a dense part, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = layers.MultiHeadAttention(4, WIDTH // 4)
        self.dense = keras.Sequential([layers.Dense(2 * WIDTH, "gelu"), layers.Dense(WIDTH)])
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

    def call(self, x):
        seen = self.norms[0](x)
        x = x + self.attend(seen, seen)
        return x + self.dense(self.norms[1](x))


class Reverser(keras.Model):
    """Says for each place which digit stands there when the line is turned around."""

    def __init__(self) -> None:
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH)
        self.places = layers.Embedding(LENGTH, WIDTH)
        self.blocks = [Block(), Block()]
        self.head = layers.Dense(WORDS)

    def call(self, line):
        x = self.words(line) + self.places(ops.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Show(keras.callbacks.Callback):
    """Prints one line and the model's answer at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        answer = np.argmax(self.model.predict(lines[:1], verbose=0), axis=-1)
        print("".join(map(str, lines[0])), "->", "".join(map(str, answer[0])))


keras.utils.set_random_seed(4)
lines = np.random.default_rng(5).integers(WORDS, size=(4096, LENGTH))
schedule = keras.optimizers.schedules.CosineDecay(0.0, 192, warmup_target=3e-3, warmup_steps=40)
model = Reverser()
model.compile(
    optimizer=keras.optimizers.Adam(schedule, clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(lines, lines[:, ::-1], batch_size=64, epochs=3, callbacks=[Show()])
