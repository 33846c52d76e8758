"""A plain Keras script with validation, whose epochs last long enough to be stopped in one."""

import json

import keras
import numpy as np

STEPS = 300

generator = np.random.default_rng(5)
x = generator.normal(size=(2 * STEPS, 6)).astype("float32")
y = (x[:, :1] + x[:, 1:2] > 0).astype("float32")

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), keras.losses.BinaryCrossentropy(from_logits=True))
history = model.fit(
    x, y, batch_size=2, epochs=4, validation_data=(x[:64], y[:64]), validation_freq=2, verbose=2
)
print(json.dumps(history.history))
