"""A functional variational autoencoder: one layer draws, also in validation, and adds its loss."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(9)
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        mean, log_variance = inputs
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        self.add_loss(0.1 * ops.mean(ops.sum(divergence, axis=1)))
        if training:
            self.calls.assign_add(1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class Corruption(layers.Layer):
    def call(self, inputs, training=False):
        if not training:
            return inputs
        return inputs + 0.1 * tf.random.normal(tf.shape(inputs))


keras.utils.set_random_seed(37)
random = np.random.default_rng(37)
x = (random.normal(size=(110, 3)) @ random.normal(size=(3, 12))).astype("float32")

inputs = keras.Input((12,))
hidden = layers.Dense(16, activation="relu")(Corruption()(inputs))
latent = Sampling()([layers.Dense(3)(hidden), layers.Dense(3)(hidden)])
outputs = layers.Dense(12)(layers.Dense(16, activation="relu")(latent))
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
history = model.fit(
    x, x, epochs=3, batch_size=20, validation_data=(x[:30], x[:30]), shuffle=False, verbose=2
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("sampling.weights.h5")
