"""A train_step and a test_step of its own: the loss has a penalty on gradients of the inputs."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class Smooth(keras.Model):
    """A regression that should not depend strongly on any input."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                predicted = self(x, training=True)
            slopes = inner.gradient(predicted, x)
            penalty = ops.mean(ops.sum(ops.square(slopes), axis=1))
            loss = self.compute_loss(y=y, y_pred=predicted) + 0.05 * penalty
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        predicted = self(x, training=False)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(self.compute_loss(y=y, y_pred=predicted))
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


keras.utils.set_random_seed(38)
random = np.random.default_rng(38)
x = random.normal(size=(110, 4)).astype("float32")
y = (x**2).sum(axis=1, keepdims=True).astype("float32")

inputs = keras.Input((4,))
hidden = layers.Dense(16, activation="softplus")(inputs)
model = Smooth(inputs, layers.Dense(1)(hidden))
model.compile(keras.optimizers.Adam(0.02), loss="mse", metrics=["mae"])

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    x[:90], y[:90], validation_data=(x[90:], y[90:]), batch_size=18, epochs=3, shuffle=False
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
