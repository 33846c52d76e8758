"""A small diffusion model: its train_step draws noise and a step of the diffusion as an integer."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

STEPS = 20


class Diffusion(keras.Model):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.kept = tf.constant(np.cumprod(1 - np.linspace(0.01, 0.3, STEPS)), tf.float32)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.seen = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
        self.drawn = self.add_weight(shape=(STEPS,), initializer="zeros", trainable=False)

    @property
    def metrics(self):
        return [self.loss_tracker]

    def noisy_loss(self, samples):
        count = tf.shape(samples)[0]
        times = tf.random.uniform((count,), 0, STEPS, dtype=tf.int64)
        noise = tf.random.normal(tf.shape(samples))
        kept = tf.gather(self.kept, times)[:, None]
        noisy = tf.sqrt(kept) * samples + tf.sqrt(1 - kept) * noise
        found = self.network([noisy, tf.one_hot(times, STEPS)], training=True)
        return tf.reduce_mean((noise - found) ** 2), times

    def train_step(self, samples):
        with tf.GradientTape() as tape:
            loss, times = self.noisy_loss(samples)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.seen.assign_add(tf.shape(samples, tf.int64)[0])
        self.drawn.assign_add(tf.reduce_sum(tf.one_hot(times, STEPS), axis=0))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, samples):
        loss, _ = self.noisy_loss(samples)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


keras.utils.set_random_seed(41)
random = np.random.default_rng(41)
angles = random.uniform(0, 2 * np.pi, size=110)
x = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")

inputs = [keras.Input((2,)), keras.Input((STEPS,))]
hidden = layers.Dense(24, activation="relu")(layers.Concatenate()(inputs))
network = keras.Model(inputs, layers.Dense(2)(layers.Dense(24, activation="relu")(hidden)))
model = Diffusion(network)
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(x, epochs=3, batch_size=20, validation_data=(x[:30],), shuffle=False, verbose=2)

print("samples", int(model.seen.numpy()), "draws", float(tf.reduce_sum(model.drawn)))
with open("history.json", "w") as file:
    json.dump(history.history, file)
network.save_weights("network.weights.h5")
