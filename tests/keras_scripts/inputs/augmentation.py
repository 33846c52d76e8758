"""Images through tf.data: shuffled, and augmented by random layers in map()."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(21)
random = np.random.default_rng(21)
labels = random.integers(2, size=100)
images = random.normal(size=(100, 12, 12, 3)) + labels[:, None, None, None]
images = images.astype("float32")

augmentation = [layers.RandomFlip("horizontal", seed=1), layers.RandomContrast(0.2, seed=2)]


def augment(image, label):
    for layer in augmentation:
        image = layer(image, training=True)
    return image, label


dataset = tf.data.Dataset.from_tensor_slices((images, labels))
train = dataset.take(80).shuffle(80, seed=3).batch(16).map(augment).prefetch(tf.data.AUTOTUNE)
validation = dataset.skip(80).batch(16)

model = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        layers.Conv2D(8, 3),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.2),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])

callbacks = [keras.callbacks.ModelCheckpoint("epoch_{epoch}.weights.h5", save_weights_only=True)]
history = model.fit(train, epochs=3, validation_data=validation, callbacks=callbacks, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
