"""tf.data: shuffled, augmented by a layer in parallel, and validated by another pipeline.

An argument is the folder for the files of callbacks.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(5)
random = np.random.default_rng(1)
x = random.normal(size=(70, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
noise = keras.layers.GaussianNoise(0.1, seed=4)
train = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .shuffle(70)
    .batch(16)
    .map(lambda a, b: (noise(a, training=True), b), num_parallel_calls=tf.data.AUTOTUNE)
    .prefetch(2)
)
validation = tf.data.Dataset.from_tensor_slices((x[:30], y[:30])).batch(8)
layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
model = keras.Sequential([keras.Input((6,)), *layers])
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
callbacks = [keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.1)]
for folder in sys.argv[1:]:
    callbacks.append(keras.callbacks.CSVLogger(f"{folder}/log.csv"))
    callbacks.append(keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True))
history = model.fit(train, epochs=3, validation_data=validation, verbose=0, callbacks=callbacks)
print(json.dumps(history.history))
