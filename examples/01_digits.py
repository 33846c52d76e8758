"""Train a small convolutional network on handwritten digits.

    holdfast run -n 4 examples/01_digits.py

Lose a worker on the way; the last line stays the same:

    holdfast run -n 4 --fresh --inject "kill worker=2 step=30" examples/01_digits.py

digits.npz has the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, 1998, CC BY 4.0): 1797 images of 8 x 8 points.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np

from holdfast import ArrayData, Trainer

DIGITS = Path(__file__).with_name("digits.npz")
VALIDATION_STRIDE = 6
"""Every sixth sample is for validation: the writers of the digits come in blocks."""


def model() -> keras.Model:
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--global-batch", type=int, default=128)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    options = parser.parse_args()

    with np.load(DIGITS) as digits:
        x = (digits["images"][..., None] / 16).astype("float32")
        y = digits["labels"].astype("int64")
    is_held_out = np.arange(len(y)) % VALIDATION_STRIDE == 0
    trainer = Trainer(
        model,
        ArrayData(x[~is_held_out], y[~is_held_out]),
        global_batch=options.global_batch,
        epochs=options.epochs,
        validation=ArrayData(x[is_held_out], y[is_held_out]),
        save_every=options.save_every,
    )
    result = trainer.run()
    if result.is_first:
        print(f"step {result.step} {result.metrics} sha256 {result.sha256}")


if __name__ == "__main__":
    main()
