"""Two images and whether they show the same thing: one network, used for both inputs."""

import json

import keras
import numpy as np
from keras import layers, ops

MARGIN = 1.0


def distance(vectors):
    x, y = vectors
    squares = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(squares, keras.backend.epsilon()))


def contrastive(different, predicted):
    near = ops.square(predicted)
    far = ops.square(ops.maximum(MARGIN - predicted, 0))
    return ops.mean((1 - different) * near + different * far)


keras.utils.set_random_seed(22)
random = np.random.default_rng(22)
things = random.normal(size=(5, 8, 8))
left, right = random.integers(5, size=(2, 110))
first = (things[left] + 0.2 * random.normal(size=(110, 8, 8))).astype("float32")
second = (things[right] + 0.2 * random.normal(size=(110, 8, 8))).astype("float32")
different = (left != right).astype("float32")[:, None]

embedding = keras.Sequential(
    [keras.Input((8, 8)), layers.Flatten(), layers.Dense(10, activation="tanh")]
)
inputs = [keras.Input((8, 8)), keras.Input((8, 8))]
merged = layers.Lambda(distance, output_shape=(1,))([embedding(side) for side in inputs])
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(merged))
model.compile(keras.optimizers.RMSprop(0.003), loss=contrastive, metrics=["accuracy"])

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    [first[:90], second[:90]],
    different[:90],
    validation_data=([first[90:], second[90:]], different[90:]),
    batch_size=20,
    epochs=3,
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
