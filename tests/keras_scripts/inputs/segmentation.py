"""Pixels of objects and of their background, read batch by batch by a PyDataset."""

import json
import math

import keras
import numpy as np
from keras import layers


class Drawings(keras.utils.PyDataset):
    """Squares at places that follow from the number of the drawing."""

    def __init__(self, numbers, batch_size):
        super().__init__()
        self.numbers, self.batch_size = numbers, batch_size

    def __len__(self):
        return math.ceil(len(self.numbers) / self.batch_size)

    def __getitem__(self, index):
        numbers = self.numbers[index * self.batch_size : (index + 1) * self.batch_size]
        drawn = [draw(number) for number in numbers]
        return np.stack([image for image, _ in drawn]), np.stack([mask for _, mask in drawn])


def draw(number):
    random = np.random.default_rng(number)
    row, column = random.integers(0, 10, size=2)
    mask = np.zeros((16, 16), "uint8")
    mask[row : row + 6, column : column + 6] = 1
    image = mask[..., None] + 0.3 * random.normal(size=(16, 16, 1))
    return image.astype("float32"), mask


keras.utils.set_random_seed(25)
inputs = keras.Input((16, 16, 1))
fine = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
coarse = layers.SeparableConv2D(8, 3, strides=2, padding="same", activation="relu")(fine)
up = layers.Conv2DTranspose(6, 3, strides=2, padding="same", activation="relu")(coarse)
outputs = layers.Conv2D(2, 3, padding="same", activation="softmax")(
    layers.Concatenate()([fine, up])
)
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.Adam(0.04),
    "sparse_categorical_crossentropy",
    metrics=[keras.metrics.MeanIoU(2, sparse_y_pred=False, name="iou")],
)

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    Drawings(range(70), 16),
    epochs=4,
    validation_data=Drawings(range(70, 90), 16),
    callbacks=[
        keras.callbacks.ModelCheckpoint(
            "best.weights.h5", save_best_only=True, save_weights_only=True
        )
    ],
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
