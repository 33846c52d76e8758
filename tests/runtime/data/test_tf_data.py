"""Images and records read by number are those of Keras's helper and of TensorFlow's reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_ids import ids_below
from hypothesis import HealthCheck, given, settings

from holdfast.runtime.data.image_folder_data import ImageFolderData
from holdfast.runtime.data.tfrecord_data import TFRecordData
from holdfast.runtime.errors import ProgramError

pytestmark = pytest.mark.tensorflow

IMAGES = 13
RECORDS = (6, 1, 4)
ANY_FIXTURE = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tensorflow as tf

    random = np.random.default_rng(8)
    made = tmp_path_factory.getbasetemp() / "images"
    if made.exists():
        return made
    made.mkdir()
    encode = (tf.io.encode_png, tf.io.encode_jpeg)
    for number in range(IMAGES):
        name = ("cats", "dogs", "dogs/young", "birds")[number % 4]
        (made / name).mkdir(exist_ok=True)
        pixels = random.integers(255, size=(5 + number, 9, 3), dtype=np.uint8)
        ending = ("png", "JPG")[number % 2]
        tf.io.write_file(f"{made}/{name}/{number}.{ending}", encode[number % 2](pixels))
    (made / "cats" / "notes.txt").write_text("no image")
    (made / ".hidden").mkdir()
    return made


@pytest.fixture
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    import tensorflow as tf

    place, total = tmp_path_factory.getbasetemp() / "records", 0
    made = [place / f"{part}.tfrecord" for part in range(len(RECORDS))]
    if place.exists():
        return made
    place.mkdir()
    for path, count in zip(made, RECORDS, strict=True):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(total, total + count):
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, 0.5])),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 3])),
                    "t": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"t" * number])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        total += count
    return made


def parse(record: Any) -> Any:
    import tensorflow as tf

    spec = {
        "x": tf.io.FixedLenFeature([2], tf.float32),
        "y": tf.io.FixedLenFeature([], tf.int64),
        "t": tf.io.FixedLenFeature([], tf.string),
    }
    found = tf.io.parse_single_example(record, spec)
    return {"x": found["x"], "t": found["t"]}, found["y"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"image_size": (6, 4)},
        {"image_size": (6, 4), "label_mode": "categorical", "color_mode": "grayscale"},
        {"image_size": (3, 8), "crop_to_aspect_ratio": True, "class_names": ["dogs", "cats"]},
        {"image_size": (5, 5), "label_mode": None, "interpolation": "nearest"},
        {"image_size": (5, 5), "class_names": ["dogs", "cats"], "label_mode": "binary"},
    ],
)
def test_images_are_those_of_keras(folder: Path, arguments: dict[str, Any]) -> None:
    import keras

    ours = ImageFolderData(folder, **arguments)
    given = arguments | ({"labels": None} if arguments.get("label_mode", "") is None else {})
    theirs = keras.utils.image_dataset_from_directory(
        folder, shuffle=False, batch_size=None, verbose=False, **given
    )
    x, y = ours.read(np.arange(len(ours)))  # type: ignore[misc]

    expected = list(theirs)
    if y is None:
        np.testing.assert_array_equal(x, expected)
    else:
        np.testing.assert_array_equal(x, [image for image, _ in expected])
        np.testing.assert_array_equal(y, [label for _, label in expected])
        assert y.dtype == expected[0][1].dtype


@pytest.mark.parametrize("subset", ["training", "validation"])
def test_subsets_are_those_of_keras(folder: Path, subset: str) -> None:
    import keras

    split: dict[str, Any] = {"validation_split": 0.3, "subset": subset, "seed": 6}
    ours = ImageFolderData(folder, image_size=(4, 4), **split)
    theirs = keras.utils.image_dataset_from_directory(
        folder, image_size=(4, 4), batch_size=None, verbose=False, **split
    )

    x = ours.read(np.arange(len(ours)))[0]

    assert len(ours) == {"training": 10, "validation": 3}[subset]
    assert {image.tobytes() for image in x} == {image.numpy().tobytes() for image, _ in theirs}


@given(ids=ids_below(IMAGES))
@settings(deadline=None, max_examples=20, suppress_health_check=ANY_FIXTURE)
def test_any_images_are_those_of_the_whole(folder: Path, ids: Any) -> None:
    data = ImageFolderData(folder, image_size=(4, 4))
    x, y = data.read(np.arange(IMAGES))  # type: ignore[misc]

    some, labels = data.read(ids)  # type: ignore[misc]

    np.testing.assert_array_equal(some, x[ids])
    np.testing.assert_array_equal(labels, y[ids])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"class_names": ["cows"]}, "class_names has cows, but .* has the folders birds, cats"),
        ({"label_mode": "binary"}, "needs two classes, and .* has 3"),
        ({"label_mode": "text"}, "label_mode='text'.: give one of 'int'"),
        ({"color_mode": "hsv"}, "color_mode='hsv'"),
        ({"subset": "training"}, "subset and validation_split together"),
        ({"validation_split": 0.01, "subset": "training"}, "leaves 0 of 13 images"),
        ({"size": 3}, "unexpected keyword argument 'size'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    folder: Path, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        ImageFolderData(folder, **arguments)


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="holds no image"):
        ImageFolderData(tmp_path)
    with pytest.raises(ProgramError, match="cannot be listed"):
        ImageFolderData(tmp_path / "missing")


def test_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")

    with pytest.raises(ProgramError, match=r"a/broken.png cannot be read as an image"):
        ImageFolderData(tmp_path).read(np.arange(1))


def test_fingerprint_tells_another_image(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    source = folder / "cats" / "0.png"
    (tmp_path / "a" / "0.png").write_bytes(source.read_bytes())
    first = ImageFolderData(tmp_path).fingerprint()

    assert ImageFolderData(tmp_path).fingerprint() == first
    assert ImageFolderData(tmp_path, image_size=(3, 3)).fingerprint() != first
    (tmp_path / "a" / "1.png").write_bytes(source.read_bytes())
    assert ImageFolderData(tmp_path).fingerprint() != first


@given(ids=ids_below(sum(RECORDS)))
@settings(deadline=None, max_examples=30, suppress_health_check=ANY_FIXTURE)
def test_any_records_are_those_of_tensorflow(records: list[Path], ids: Any) -> None:
    import tensorflow as tf

    theirs = list(tf.data.TFRecordDataset([str(path) for path in records]).map(parse))
    data = TFRecordData(records, parse)

    if not len(ids):
        return
    x, y = data.read(ids)  # type: ignore[misc]

    assert len(data) == len(theirs) == sum(RECORDS)
    np.testing.assert_array_equal(x["x"], [theirs[number][0]["x"] for number in ids])
    assert x["t"].tolist() == [theirs[number][0]["t"].numpy() for number in ids]
    np.testing.assert_array_equal(y, [theirs[number][1] for number in ids])


def test_damaged_record_is_named(records: list[Path], tmp_path: Path) -> None:
    content = bytearray(records[0].read_bytes())
    content[-5] ^= 1
    damaged = tmp_path / "damaged.tfrecord"
    damaged.write_bytes(content)

    with pytest.raises(ProgramError, match=r"record 6 of .*damaged.tfrecord is damaged"):
        TFRecordData(damaged, parse).read(np.array([5]))


def random_parse(record: Any) -> Any:
    import tensorflow as tf

    return parse(record)[0]["x"] + tf.random.normal((2,))


def ragged_parse(record: Any) -> Any:
    import tensorflow as tf

    return tf.strings.bytes_split(record)


@pytest.mark.parametrize(
    ("function", "said"),
    [(random_parse, "draws random numbers"), (ragged_parse, "all samples need one shape")],
)
def test_parse_that_cannot_be_used_is_refused(
    records: list[Path], function: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        TFRecordData(records, function).read(np.arange(2))


def test_fingerprint_tells_other_records(records: list[Path]) -> None:
    first = TFRecordData(records, parse).fingerprint()

    assert TFRecordData(records, parse).fingerprint() == first
    assert TFRecordData(records[::-1], parse).fingerprint() != first
    with pytest.raises(ProgramError, match="got no files"):
        TFRecordData([], parse)


def test_length_that_looks_like_a_compressed_file_is_none(tmp_path: Path) -> None:
    """A record of 0x8b1f bytes begins with the two bytes that a gzip file begins with."""
    import tensorflow as tf

    file = tmp_path / "long.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"t" * 0x8B1F)

    assert file.read_bytes()[:2] == b"\x1f\x8b"
    assert len(TFRecordData(file, parse)) == 1


@pytest.mark.parametrize("number", [-1, sum(RECORDS)])
def test_record_that_is_not_there_is_an_error(records: list[Path], number: int) -> None:
    with pytest.raises(IndexError, match=f"there are 11 records, and no record {number}"):
        TFRecordData(records, parse).read(np.array([0, number]))


def test_parse_may_return_weights_but_no_fourth_part(records: list[Path]) -> None:
    def weighed(record: Any) -> Any:
        x, y = parse(record)
        return x["x"], y, x["x"][0]

    def too_much(record: Any) -> Any:
        return (*weighed(record), 1.0)

    _, y, weights = TFRecordData(records, weighed).read(np.array([7, 3]))  # type: ignore[misc]

    assert y.tolist() == [1, 0]
    assert weights.tolist() == [7.0, 3.0]
    with pytest.raises(ProgramError, match="returned 4 parts: return x"):
        TFRecordData(records, too_much).read(np.arange(2))


def test_parse_that_returns_x_alone_has_no_targets(records: list[Path]) -> None:
    data = TFRecordData(records[0], lambda record: parse(record)[0]["x"])

    x, y = data.read(np.array([2]))  # type: ignore[misc]

    assert x.tolist() == [[2.0, 0.5]]
    assert y is None
