"""A model with statistics and draws, wide enough for XLA; the argument names the optimizer."""

import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

DIGITS = Path(__file__).parents[3] / "examples" / "digits.npz"
kinds, layers = keras.optimizers, keras.layers


def several() -> keras.Optimizer:
    one, other = kinds.Adam(0.01), kinds.SGD(0.1)
    return kinds.MultiOptimizer(lambda variable: one if variable.name == "bias" else other)


class Noisy(kinds.SGD):  # type: ignore[misc]
    """It calls Python in a step, so XLA cannot compile it."""

    def update_step(self, gradient: object, variable: object, learning_rate: object) -> None:
        import tensorflow as tf

        halved = tf.numpy_function(lambda found: found / 2, [gradient], tf.float32)
        super().update_step(tf.reshape(halved, gradient.shape), variable, learning_rate)


OPTIMIZERS: dict[str, Callable[[], keras.Optimizer]] = {
    "nesterov": lambda: kinds.SGD(0.05, momentum=0.9, nesterov=True),
    "schedule": lambda: kinds.Adam(kinds.schedules.CosineDecay(5e-3, 20), clipnorm=1.0),
    "averages": lambda: kinds.AdamW(use_ema=True, ema_overwrite_frequency=4),
    "global norm": lambda: kinds.SGD(0.1, global_clipnorm=0.5),
    "accumulation": lambda: kinds.Adam(gradient_accumulation_steps=2),
    "scale": lambda: kinds.LossScaleOptimizer(kinds.Adam(), 2.0**126),
    "several": several,
    "own": lambda: Noisy(0.05),
    "rmsprop": lambda: kinds.RMSprop(centered=True),
    "lamb": kinds.Lamb,
    "adafactor": kinds.Adafactor,
    "lion": kinds.Lion,
    "ftrl": kinds.Ftrl,
    "muon": kinds.Muon,
}


def main() -> None:
    keras.utils.set_random_seed(3)
    words = [layers.Reshape((64,)), layers.Embedding(17, 4), layers.LSTM(8)]
    pixels = [layers.Dense(24), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3)]
    has_words = sys.argv[1] in ("schedule", "nesterov")
    wide = [layers.Dense(2048, activation="relu"), layers.Dense(160), layers.Dense(10)]
    model = keras.Sequential([*(words if has_words else pixels), *wide])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[sys.argv[1]](), loss)
    with np.load(DIGITS) as data:
        x, y = data["images"][:300].reshape(300, 64), data["labels"][:300].astype(np.int64)
    model.fit(x if has_words else (x / 16).astype(np.float32), y, 64, epochs=2, verbose=0)


if __name__ == "__main__":
    main()
