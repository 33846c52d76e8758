"""Half precision with a dynamic loss scale, whose first value is too large on purpose."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(35)
keras.mixed_precision.set_global_policy("mixed_float16")
random = np.random.default_rng(35)
x = random.normal(size=(128, 12)).astype("float32")
y = (x @ random.normal(size=(12, 3))).argmax(axis=1)

model = keras.Sequential(
    [
        keras.Input((12,)),
        layers.Dense(16, activation="relu"),
        layers.Dense(3),
        layers.Activation("softmax", dtype="float32"),
    ]
)
optimizer = keras.mixed_precision.LossScaleOptimizer(
    keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=2.0**20, dynamic_growth_steps=5
)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

# In order, so that each batch is the same one in every run of this script.
history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
with open("scale.txt", "w") as file:
    file.write(f"{float(optimizer.dynamic_scale)}\n")
model.save_weights("model.weights.h5")
