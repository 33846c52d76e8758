"""Data on the disk, a kind for each fit; images and records by the loaders of Keras and tf.data."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from holdfast import HDF5Data, NpyData, WindowData

folder = Path(sys.argv[1])
keras.utils.set_random_seed(5)


def parse(record):
    spec = {"x": tf.io.FixedLenFeature([6], tf.float32), "y": tf.io.FixedLenFeature([], tf.float32)}
    found = tf.io.parse_single_example(record, spec)
    return found["x"], found["y"]


def compiled(*layers):
    model = keras.Sequential([*layers, keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


table = compiled(keras.Input((6,)), keras.layers.Dropout(0.2), keras.layers.Dense(8))
pictures = compiled(
    keras.Input((4, 4, 3)),
    keras.layers.Rescaling(1 / 255),
    keras.layers.RandomFlip(seed=2),
    keras.layers.Flatten(),
)
hdf5 = HDF5Data(folder / "data.h5", "x", "labels/y")
npy = NpyData(folder / "x.npy", folder / "y.npy")
series = np.load(folder / "series.npy", mmap_mode="r")
files = [str(folder / "0.tfrecord"), str(folder / "1.tfrecord")]
records = tf.data.TFRecordDataset(files).map(parse).shuffle(50, seed=4).batch(16)
split = {"image_size": (4, 4), "label_mode": "binary", "validation_split": 0.3, "seed": 1}
images = keras.utils.image_dataset_from_directory(
    folder / "images", subset="both", batch_size=8, verbose=False, **split
)

histories = [
    table.fit(hdf5, batch_size=16, epochs=2, validation_split=0.2, verbose=0),
    table.fit(npy, batch_size=16, validation_data=hdf5, class_weight={1: 2.0}, verbose=0),
    table.fit(WindowData(series, series > 0, 6, sampling_rate=2), batch_size=16, verbose=0),
    table.fit(records, epochs=2, validation_data=npy, verbose=0),
    pictures.fit(images[0], epochs=2, validation_data=images[1], verbose=0),
]
print(json.dumps([history.history for history in histories]))
