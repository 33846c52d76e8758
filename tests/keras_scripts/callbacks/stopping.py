"""A callback stops each training within an epoch, which Keras validates before it ends."""

import json

import keras
import numpy as np

generator = np.random.default_rng(3)
x = generator.normal(size=(48, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")


class Stops(keras.callbacks.Callback):
    """Stops after a batch of an epoch, and notes its hooks."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self.when = (epoch, batch)
        self.epoch = 0
        self.seen: list[str] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.epoch = epoch
        self.seen.append(f"begin {epoch}")

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.seen.append(f"batch {batch}")
        if (self.epoch, batch) == self.when:
            self.model.stop_training = True

    def on_test_begin(self, logs: object = None) -> None:
        self.seen.append("test begin")

    def on_test_end(self, logs: object = None) -> None:
        self.seen.append("test end")

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.seen.append(f"end {epoch} {sorted(logs)}")

    def on_train_end(self, logs: dict[str, float]) -> None:
        self.seen.append(f"end {sorted(logs)}")


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid", True, "ones")])
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
found = []
for arguments, when in (
    ({"validation_data": (x[:20], y[:20])}, (1, 1)),
    ({"validation_data": (x[:20], y[:20]), "validation_freq": 2}, (2, 0)),
    ({"validation_data": (x[:20], y[:20]), "steps_per_epoch": 3}, (1, 0)),
):
    stops = Stops(*when)
    history = model.fit(
        x, y, batch_size=12, epochs=4, shuffle=False, callbacks=[stops], verbose=0, **arguments
    )
    found.append([stops.seen, history.epoch, history.history])
with open("history.json", "w") as file:
    json.dump(found, file)
