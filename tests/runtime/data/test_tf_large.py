"""Data that stay on the disk: any pass over them can be opened, and equals plain Keras's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.data.batch import make_batch

pytestmark = pytest.mark.tensorflow

SEED = 7


def windows(folder: Path) -> Any:
    """Windows of a record, cut by Keras's helper."""
    import keras

    record = np.arange(60, dtype="float32").reshape(30, 2)
    return keras.utils.timeseries_dataset_from_array(
        record[:-4], record[4:, 0], sequence_length=4, batch_size=8, shuffle=True, seed=1
    )


def folders(folder: Path) -> Any:
    """Images in a folder for each class."""
    import keras
    import tensorflow as tf

    for number in range(12):
        place = folder / ("ab"[number % 2])
        place.mkdir(exist_ok=True)
        image = tf.io.encode_png(np.full((6, 6, 3), number, np.uint8))
        tf.io.write_file(str(place / f"{number}.png"), image)
    return keras.utils.image_dataset_from_directory(
        folder, image_size=(4, 4), batch_size=5, seed=1, verbose=False
    )


def records(folder: Path) -> Any:
    """Examples in two TFRecord files, interleaved, shuffled and parsed."""
    import tensorflow as tf

    for part in range(2):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as writer:
            for number in range(10):
                values = tf.train.FloatList(value=[part, number])
                feature = {"x": tf.train.Feature(float_list=values)}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"), shuffle=True, seed=2)
    examples = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    spec = {"x": tf.io.FixedLenFeature([2], tf.float32)}
    parsed = examples.shuffle(8).map(lambda text: tf.io.parse_single_example(text, spec)["x"])
    return parsed.batch(4)


def lines(folder: Path) -> Any:
    """A table in CSV, with texts and numbers."""
    import tensorflow as tf

    table = "name,age,y\n" + "".join(f"n{i},{i},{i % 2}\n" for i in range(20))
    (folder / "table.csv").write_text(table, encoding="utf-8")
    return tf.data.experimental.make_csv_dataset(
        str(folder / "table.csv"), 6, label_name="y", num_epochs=1, shuffle_seed=3
    )


@pytest.mark.parametrize("make", [windows, folders, records, lines])
def test_any_pass_can_be_opened_and_the_first_is_that_of_keras(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    import keras

    from holdfast.runtime.data.tf_source import DatasetSource

    keras.utils.set_random_seed(SEED)
    dataset = make(tmp_path)
    one, other = DatasetSource(dataset, SEED), DatasetSource(dataset, SEED)

    def digests(elements: Any) -> list[int]:
        return [make_batch(0, element).digest for element in elements]

    assert not one.has_python
    passes = [digests(one.open(number, 0)[1]) for number in range(3)]
    assert [digests(other.open(number, 0)[1]) for number in (2, 0)] == [passes[2], passes[0]]
    assert passes[0] == digests(iter(dataset))
    assert passes[0] != passes[1]
