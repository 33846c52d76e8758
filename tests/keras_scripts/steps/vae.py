"""A variational autoencoder: its train_step has two losses, no targets, and trackers of its own."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(5)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_tracker, self.reconstruction_tracker, self.kl_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance, z = self.encoder(data)
            errors = keras.losses.binary_crossentropy(data, self.decoder(z))
            reconstruction = ops.mean(ops.sum(errors, axis=1))
            kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl = ops.mean(ops.sum(kl, axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.total_tracker.update_state(total)
        self.reconstruction_tracker.update_state(reconstruction)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}


keras.utils.set_random_seed(31)
random = np.random.default_rng(31)
prototypes = random.random(size=(4, 10, 8))
digits = (prototypes[random.integers(4, size=100)] > random.random(size=(100, 10, 8))).astype(
    "float32"
)

inputs = keras.Input((10, 8))
hidden = layers.Dense(24, activation="relu")(layers.Flatten()(inputs))
mean, log_variance = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
encoder = keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])
decoder = keras.Sequential(
    [
        keras.Input((2,)),
        layers.Dense(24, activation="relu"),
        layers.Dense(80, activation="sigmoid"),
        layers.Reshape((10, 8)),
    ]
)
model = VAE(encoder, decoder)
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(digits, epochs=3, batch_size=20, shuffle=False, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
encoder.save_weights("encoder.weights.h5")
decoder.save_weights("decoder.weights.h5")
