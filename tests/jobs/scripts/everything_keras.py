"""A model with everything that could make bits differ: statistics, noise, decay, schedules, sums.

Neither the samples (310), nor the batch (64), nor its microbatches divide anything
evenly, and the last batch of an epoch is short.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

from holdfast import ArrayData, Trainer

DIGITS = Path(__file__).parents[3] / "examples" / "digits.npz"


def model() -> keras.Model:
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Conv2D(8, 3, kernel_regularizer=keras.regularizers.L2(1e-4)),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(24, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(5e-3, decay_steps=40)
    network.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=1e-3, clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3, name="top3")],
    )
    return network


def digits(samples: int, first: int) -> ArrayData:
    rows = slice(first, first + samples)
    with np.load(DIGITS) as data:
        images, labels = data["images"][rows, ..., None], data["labels"][rows]
    return ArrayData((images / 16).astype(np.float32), labels.astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--initial")
    options = parser.parse_args()
    result = Trainer(
        model,
        digits(310, 0),
        global_batch=64,
        epochs=options.epochs,
        validation=digits(90, 310),
        save_every=4,
        initial=options.initial,
    ).run()
    if result.is_first:
        print(f"accuracy {result.metrics['accuracy']} validation {result.validation}")


if __name__ == "__main__":
    main()
