"""A table with columns of numbers, whole numbers and strings, read by tf.data as a dict."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CITIES = ["Oslo", "Lima", "Pune", "Kyiv"]

keras.utils.set_random_seed(23)
random = np.random.default_rng(23)
columns = {
    "age": random.integers(18, 80, size=(140, 1)).astype("int64"),
    "income": random.lognormal(3, 1, size=(140, 1)).astype("float32"),
    "city": random.choice([*CITIES, "elsewhere"], size=(140, 1)),
}
bought = (columns["age"] + columns["income"] > 65).astype("float32")


def dataset(rows):
    table = {name: values[rows] for name, values in columns.items()}
    return tf.data.Dataset.from_tensor_slices((table, bought[rows])).batch(20)


train, validation = dataset(slice(0, 110)), dataset(slice(110, 140))

age = layers.Normalization(axis=None)
age.adapt(train.map(lambda table, label: table["age"]))
income = layers.Normalization(axis=None)
income.adapt(columns["income"][:110])
city = layers.StringLookup(vocabulary=CITIES, output_mode="one_hot")

inputs = {
    "age": keras.Input((1,), name="age", dtype="int64"),
    "income": keras.Input((1,), name="income"),
    "city": keras.Input((1,), name="city", dtype="string"),
}
features = [age(inputs["age"]), income(inputs["income"]), city(inputs["city"])]
hidden = layers.Dense(12, activation="relu")(layers.Concatenate()(features))
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["accuracy"])

history = model.fit(train, epochs=3, validation_data=validation, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
