"""Train a convolutional network on images that are changed at random in each epoch.

    holdfast run -n 2 examples/03_augmented_images.py

The script is plain Keras and has no holdfast in it.  The layers of the augmentation and the dropout
draw other numbers in each step.  They follow from seed, step and microbatch, so a worker that takes
over another one's samples draws the same:

    holdfast run -n 2 --fresh --inject "kill worker=1 step=40" examples/03_augmented_images.py
"""

from __future__ import annotations

import keras
import numpy as np

SIDE = 16


def shapes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw discs, squares and crosses of any size anywhere, with noise."""
    random = np.random.default_rng(seed)
    kinds = random.integers(3, size=count)
    middle = random.uniform(5, SIDE - 5, (count, 2, 1, 1))
    size = random.uniform(2.5, 4.5, (count, 1, 1))
    rows, columns = np.indices((SIDE, SIDE))
    up, right = np.abs(rows - middle[:, 0]), np.abs(columns - middle[:, 1])
    disc = up**2 + right**2 < size**2
    square = np.maximum(up, right) < size * 0.85
    cross = (np.minimum(up, right) < 1) & (np.maximum(up, right) < size)
    images = np.choose(kinds[:, None, None], [disc, square, cross])
    noisy = images + random.normal(0, 0.3, images.shape)
    return noisy[..., None].astype("float32"), kinds


keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential(
    [
        layers.RandomFlip("horizontal_and_vertical"),
        layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.GlobalMaxPooling2D(),
        layers.Dropout(0.2),
        layers.Dense(3),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(5e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(*shapes(2048, seed=2), batch_size=64, epochs=6, validation_data=shapes(512, seed=3))
