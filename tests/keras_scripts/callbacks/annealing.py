"""Variables that no model owns: annealed weights of a loss, and the metric of a callback."""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
random = np.random.default_rng(1)
x = random.normal(size=(48, 6)).astype("float32")
sharpness = tf.Variable(1.0, trainable=False)


class Coder(keras.Model):
    """Its step reads a variable that Keras does not track."""

    def __init__(self):
        super().__init__()
        self.narrow, self.wide = keras.layers.Dense(2), keras.layers.Dense(6)
        self.seen = keras.metrics.Mean(name="loss")
        self.beta = tf.Variable(0.0, trainable=False)

    @property
    def metrics(self):
        return [self.seen]

    def train_step(self, inputs):
        with tf.GradientTape() as tape:
            code = self.narrow(inputs)
            miss = keras.ops.mean(keras.ops.square(self.wide(code) - inputs))
            loss = sharpness * miss + self.beta * keras.ops.mean(keras.ops.square(code))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.seen.update_state(loss)
        return {"loss": self.seen.result()}


class Annealing(keras.callbacks.Callback):
    """Holds a metric, a variable of Keras and a tensor, and changes the model's variable."""

    def __init__(self):
        super().__init__()
        self.means = keras.metrics.Mean()
        self.rate = keras.Variable(0.1, trainable=False)
        self.factor = tf.constant(1.0)
        self.large = tf.Variable(tf.zeros(20_000))

    def on_train_batch_end(self, batch, logs=None):
        self.means.update_state(logs["loss"])
        self.factor = self.factor * 1.01
        self.model.beta.assign_add(self.rate * self.factor)

    def on_epoch_end(self, epoch, logs=None):
        self.rate.assign(self.rate + float(self.means.result()) / 100)


def sharpen(epoch, logs):
    sharpness.assign(sharpness * 1.5)


model = Coder()
model.compile(keras.optimizers.Adam(0.01))
annealing = Annealing()
callbacks = [annealing, keras.callbacks.LambdaCallback(on_epoch_end=sharpen)]
for _ in range(2):
    model.fit(x, batch_size=16, epochs=2, callbacks=callbacks, shuffle=False, verbose=0)
held = [sharpness, model.beta, annealing.rate, annealing.factor, annealing.means.result()]
with open("history.json", "w") as file:
    json.dump({"held": [float(value) for value in held]}, file)
