"""An ordinary Keras script with many callbacks; its argument is the folder of their files."""

import importlib.util
import json
import os
import sys
from typing import Any

import keras
import numpy as np

os.chdir(sys.argv[1])
generator = np.random.default_rng(0)
x = generator.normal(size=(96, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])


class Diary(keras.callbacks.Callback):
    """Keeps losses, weights, an open file, and one that it opens for each line."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.best = float("inf")
        self.best_weights: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.file = open("diary.txt", "w")  # noqa: SIM115
        self.file.write("begin\n")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.file.write(f"{epoch} {logs['val_loss']}\n")
        with open("lines.txt", "a") as file:
            file.write("the same line\n")
        if logs["val_loss"] < self.best:
            self.best, self.best_weights = logs["val_loss"], self.model.get_weights()

    def on_train_end(self, logs: Any = None) -> None:
        self.file.write("end\n")
        self.file.close()


diary = Diary()
stops = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
callbacks = [
    stops,
    keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.02),
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    keras.callbacks.ModelCheckpoint("{epoch:02d}.weights.h5", save_weights_only=True),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.TerminateOnNaN(),
    diary,
]
if importlib.util.find_spec("tensorboard"):
    callbacks.append(keras.callbacks.TensorBoard("events", update_freq=2))
history = model.fit(
    x, y, batch_size=12, epochs=12, validation_split=0.25, callbacks=callbacks, verbose=0
)

result = {
    "history": history.history,
    "epochs": history.epoch,
    "losses": diary.losses,
    "stopped": [stops.stopped_epoch, stops.best_epoch, stops.best, stops.wait],
    "rate": float(model.optimizer.learning_rate),
    "weights": [float(weight.sum()) for weight in model.get_weights()],
    "best": [float(weight.sum()) for weight in diary.best_weights],
}
with open("result.json", "w") as file:
    json.dump(result, file)
model.save("model.keras")
again = keras.models.load_model("model.keras")
assert all(map(np.array_equal, again.get_weights(), model.get_weights()))
