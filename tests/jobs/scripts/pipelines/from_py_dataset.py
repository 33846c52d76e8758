"""A PyDataset of dicts that draws noise and orders from NumPy's global generator; class weights."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(5)


class Noisy(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order = np.arange(70)
        self.x = np.random.default_rng(0).normal(size=(70, 6))

    def __len__(self):
        return 5

    def __getitem__(self, index):
        x = self.x[self.order[index * 16 : (index + 1) * 16]]
        x = x + np.random.normal(size=x.shape) * 0.1
        return {"a": x.astype("float32")}, (x.sum(axis=1) > 0).astype("float32")

    def on_epoch_end(self):
        np.random.shuffle(self.order)


inputs = keras.Input((6,), name="a")
outputs = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Dense(8)(inputs))
model = keras.Model({"a": inputs}, outputs)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    Noisy(), epochs=3, validation_data=Noisy(), class_weight={0: 1.0, 1: 2.0}, verbose=0
)
print(json.dumps(history.history))
