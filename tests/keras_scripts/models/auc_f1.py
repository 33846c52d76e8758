"""Many labels a sample, judged by metrics that are not means: AUC, F1, IoU, precision at recall."""

import json

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(16)
random = np.random.default_rng(16)
x = random.normal(size=(150, 8)).astype("float32")
y = (x @ random.normal(size=(8, 3)) + 0.5 * random.normal(size=(150, 3)) > 0).astype("float32")

model = keras.Sequential(
    [keras.Input((8,)), layers.Dense(12, activation="relu"), layers.Dense(3, activation="sigmoid")]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.2, momentum=0.9, nesterov=True),
    loss="binary_crossentropy",
    metrics=[
        keras.metrics.AUC(name="auc", multi_label=True, num_labels=3),
        keras.metrics.F1Score(average="macro", threshold=0.5, name="f1"),
        keras.metrics.BinaryIoU(name="iou"),
        keras.metrics.PrecisionAtRecall(0.6, name="precision_at_recall"),
        keras.metrics.R2Score(name="r2"),
        keras.metrics.RootMeanSquaredError(name="rmse"),
    ],
)

# In order, so that each batch is the same one in every run of this script.
history = model.fit(x, y, batch_size=32, epochs=3, validation_split=0.25, shuffle=False, verbose=2)

with open("history.json", "w") as file:
    json.dump(history.history, file)
model.save_weights("model.weights.h5")
