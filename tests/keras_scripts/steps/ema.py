"""Averages of the weights along the way, which the model has at the end."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(36)
random = np.random.default_rng(36)
x = random.normal(size=(120, 6)).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")

model = keras.Sequential([keras.Input((6,)), layers.Dense(16, activation="tanh"), layers.Dense(1)])
model.compile(
    optimizer=keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.02, 18, warmup_target=0.03, warmup_steps=3),
        weight_decay=0.01,
        global_clipnorm=1.0,
        use_ema=True,
        ema_momentum=0.9,
    ),
    loss="mse",
    metrics=["mae"],
)

# In order, so that each batch is the same one in every run of this script.
history = model.fit(x, y, batch_size=20, epochs=3, shuffle=False, verbose=2)

evaluated = model.evaluate(x, y, verbose=0)
with open("history.json", "w") as file:
    json.dump(history.history | {"evaluated": evaluated}, file)
model.save_weights("model.weights.h5")
