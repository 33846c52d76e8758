"""Train a generative adversarial network: two networks, two optimizers, a step of one's own.

    holdfast run -n 2 examples/05_gan.py

The script is plain Keras and has no holdfast in it.  ``train_step`` is traced as Keras traces it,
and what both optimizers apply is summed over the workers:

    holdfast run -n 2 --fresh --inject "kill worker=1 step=100" examples/05_gan.py
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

NOISE = 4


def dense(*widths: int) -> keras.Sequential:
    hidden = [keras.layers.Dense(width, "relu") for width in widths[:-1]]
    return keras.Sequential([*hidden, keras.layers.Dense(widths[-1])])


class Gan(keras.Model):
    """A generator of points, and a discriminator that tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = dense(32, 32, 2), dense(32, 32, 1)
        self.random = keras.random.SeedGenerator(6)
        self.told_apart = keras.metrics.Mean(name="told_apart")
        self.radius = keras.metrics.Mean(name="radius")

    def compile(self, generator_optimizer: object, discriminator_optimizer: object) -> None:
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, real):
        count = tf.shape(real)[0]
        noise = keras.random.normal((count, NOISE), seed=self.random)
        ones, zeros = tf.ones((count, 1)), tf.zeros((count, 1))
        with tf.GradientTape(persistent=True) as tape:
            made = self.generator(noise)
            of_real, of_made = self.discriminator(real), self.discriminator(made)
            loss = self.entropy(ones, of_real) + self.entropy(zeros, of_made)
            loss_of_generator = self.entropy(ones, of_made)
        for network, value, optimizer in (
            (self.discriminator, loss, self.discriminator_optimizer),
            (self.generator, loss_of_generator, self.generator_optimizer),
        ):
            weights = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
        self.told_apart.update_state(tf.concat([of_real > 0, of_made <= 0], 0))
        self.radius.update_state(tf.norm(made, axis=1))
        return {"told_apart": self.told_apart.result(), "radius": self.radius.result()}


keras.utils.set_random_seed(7)
angle = np.random.default_rng(8).uniform(0, 2 * np.pi, (4096, 1))
ring = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype("float32")
gan = Gan()
gan.generator.build((None, NOISE))
gan.discriminator.build((None, 2))
gan.compile(keras.optimizers.Adam(1e-3, 0.5), keras.optimizers.Adam(1e-3, 0.5))
gan.fit(ring, batch_size=128, epochs=8)  # the radius of real points is 1
