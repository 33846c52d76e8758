"""An endpoint layer: it takes the targets as an input and adds the loss, so fit() needs no y."""

import json

import keras
import numpy as np
from keras import layers, ops


class LogisticEndpoint(layers.Layer):
    def __init__(self):
        super().__init__()
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, logits, targets=None, sample_weight=None):
        if targets is not None:
            self.add_loss(self.loss_fn(targets, logits, sample_weight))
            self.accuracy.update_state(targets, ops.sigmoid(logits), sample_weight)
        return ops.sigmoid(logits)


keras.utils.set_random_seed(14)
random = np.random.default_rng(14)
features = random.normal(size=(88, 5)).astype("float32")
targets = (features.sum(axis=1, keepdims=True) > 0).astype("float32")
weights = random.uniform(0.5, 1.5, size=(88, 1)).astype("float32")

inputs = keras.Input((5,), name="features")
target_input = keras.Input((1,), name="targets")
weight_input = keras.Input((1,), name="weights")
hidden = layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
outputs = LogisticEndpoint()(layers.Dense(1)(hidden), target_input, weight_input)
model = keras.Model([inputs, target_input, weight_input], outputs)
model.compile(keras.optimizers.Adam(0.02))

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    {"features": features, "targets": targets, "weights": weights},
    batch_size=16,
    epochs=3,
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
