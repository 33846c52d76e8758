"""A ``Dataset.cache(file)`` that takes a while to fill: each sample has many small operations."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def slow(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.foldl(lambda s, _: tf.sin(s), tf.range(3000), x), y


data = tf.data.Dataset.from_tensor_slices((x, y)).map(slow).cache("train.cache").batch(32)
for features, _ in data.take(1):
    print("looked at", features.shape)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(data, epochs=2, verbose=0)
print("losses", [round(loss, 4) for loss in history.history["loss"]])
