"""A ticket with title, text and tags: its priority and its department, each with its own loss."""

import json

import keras
import numpy as np
from keras import layers

WORDS, TAGS, DEPARTMENTS = 50, 6, 4

keras.utils.set_random_seed(24)
random = np.random.default_rng(24)
title = random.integers(WORDS, size=(96, 5))
body = random.integers(WORDS, size=(96, 12))
tags = random.integers(2, size=(96, TAGS)).astype("float32")
priority = tags.mean(axis=1, keepdims=True)
department = keras.utils.to_categorical(title[:, 0] % DEPARTMENTS, DEPARTMENTS)

title_input = keras.Input((5,), name="title", dtype="int32")
body_input = keras.Input((12,), name="body", dtype="int32")
tags_input = keras.Input((TAGS,), name="tags")
features = layers.concatenate(
    [
        layers.Flatten()(layers.Embedding(WORDS, 6)(title_input)),
        layers.GlobalMaxPooling1D()(layers.Embedding(WORDS, 6)(body_input)),
        tags_input,
    ]
)
priority_output = layers.Dense(1, name="priority")(features)
department_output = layers.Dense(DEPARTMENTS, name="department")(features)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_output, "department": department_output},
)
model.compile(
    optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    metrics={"department": ["accuracy"], "priority": ["mae"]},
    loss_weights={"priority": 1.0, "department": 0.2},
)

# In order, so that each batch is the same one in every run of this script.
history = model.fit(
    {"title": title, "body": body, "tags": tags},
    {"priority": priority, "department": department},
    epochs=3,
    batch_size=16,
    shuffle=False,
    verbose=2,
)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
