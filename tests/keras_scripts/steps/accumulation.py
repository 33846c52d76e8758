"""Gradients of three batches are accumulated before the optimizer takes a step."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(37)
random = np.random.default_rng(37)
x = random.normal(size=(100, 10)).astype("float32")
y = (x[:, :5].sum(axis=1) > x[:, 5:].sum(axis=1)).astype("int32")
weights = random.uniform(0.2, 2.0, size=100).astype("float32")

model = keras.Sequential([keras.Input((10,)), layers.Dense(12, activation="gelu"), layers.Dense(1)])
model.compile(
    optimizer=keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
)

# In order, so that each batch is the same one in every run of this script.
history = model.fit(x, y, sample_weight=weights, batch_size=14, epochs=3, shuffle=False, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
