"""A generator against a discriminator: two optimizers, which take turns within one train_step."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT = 6


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seed_generator = keras.random.SeedGenerator(7)
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def train_step(self, real):
        size = ops.shape(real)[0]
        noise = keras.random.normal((size, LATENT), seed=self.seed_generator)
        both = ops.concatenate([self.generator(noise), real], axis=0)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights))

        noise = keras.random.normal((size, LATENT), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros((size, 1)), judged)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights))

        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


keras.utils.set_random_seed(32)
random = np.random.default_rng(32)
angles = random.uniform(0, 2 * np.pi, size=120)
points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")

discriminator = keras.Sequential(
    [keras.Input((2,)), layers.Dense(16), layers.LeakyReLU(), layers.Dense(1)]
)
generator = keras.Sequential(
    [keras.Input((LATENT,)), layers.Dense(16), layers.LeakyReLU(), layers.Dense(2)]
)
model = GAN(discriminator, generator)
model.compile(
    d_optimizer=keras.optimizers.Adam(0.003),
    g_optimizer=keras.optimizers.Adam(0.003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = model.fit(points, epochs=3, batch_size=24, shuffle=False, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
generator.save_weights("generator.weights.h5")
discriminator.save_weights("discriminator.weights.h5")
