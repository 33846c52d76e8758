"""What TensorFlow makes of files and records: one graph for any number of samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.lib.io.tf_record import tf_record_random_reader

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.model_rules import hidden_state
from holdfast.runtime.model.replica import Nest, map_leaves

_ONE = tf.TensorSpec((), tf.string)
_MANY = tf.TensorSpec((None,), tf.string)

ImageForm: TypeAlias = tuple[tuple[int, int, int], str, bool]
"""Height, width and channels; the interpolation; whether an image is cropped to its ratio."""


def decoded_images(paths: Sequence[str], form: ImageForm) -> npt.NDArray[np.float32]:
    """Return the images of some files, float32 of the shape (paths, height, width, channels).

    Raises:
        ProgramError: a file cannot be read, or is no image.
    """
    try:
        found: npt.NDArray[np.float32] = _decoder(form)(tf.constant(paths, tf.string)).numpy()
    except tf.errors.OpError:
        raise _first_bad(paths, form) from None
    return found


@functools.lru_cache(maxsize=8)
def _decoder(form: ImageForm) -> Any:
    """Return the graph from paths to images of one form."""
    return tf.function(_each(lambda path: _image(path, form)), [_MANY], autograph=False)


def _image(path: Any, form: ImageForm) -> Any:
    """Decode one image and resize it as ``image_dataset_from_directory`` does."""
    (height, width, channels), interpolation, is_cropped = form
    image = tf.io.decode_image(tf.io.read_file(path), channels, expand_animations=False)
    image.set_shape((None, None, channels))
    resize = keras.preprocessing.image.smart_resize if is_cropped else tf.image.resize
    resized = resize(image, (height, width), interpolation)
    return tf.cast(tf.ensure_shape(resized, (height, width, channels)), tf.float32)


def _first_bad(paths: Sequence[str], form: ImageForm) -> ProgramError:
    """Return the error of the first file that cannot be decoded alone."""
    for path in paths:
        try:
            _decoder(form)(tf.constant([path]))
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0]
            return ProgramError(f"{path} cannot be read as an image: {reason}; mend or remove it")
    return ProgramError(f"images such as {paths[0]} could be read one by one, and not together")


def record_reader(path: str) -> Any:
    """Return what reads a record of a TFRecord file at an offset, and compares its checksum."""
    return tf_record_random_reader(path)


def parser_of(parse: Callable[[Any], Any]) -> Callable[[list[bytes]], Nest]:
    """Return a function from serialised records to arrays, by the script's ``parse`` of one.

    Raises:
        ProgramError: ``parse`` draws random numbers.
    """
    one = tf.function(parse, [_ONE]).get_concrete_function()
    drawn = next(hidden_state(one.graph.as_graph_def()), None)
    if drawn is not None:
        raise ProgramError(
            f"the function that parses a record draws random numbers, or keeps a state ({drawn}): "
            "a record would differ from read to read; let layers of the model augment samples"
        )
    for leaf in tf.nest.flatten(one.structured_outputs):
        if not leaf.shape.is_fully_defined():
            raise ProgramError(
                f"the function that parses a record returns a tensor of the shape {leaf.shape}, "
                "and all samples need one shape: resize or pad it, and name it with "
                "tf.ensure_shape"
            )
    many = tf.function(_each(parse), [_MANY])

    def parsed(records: list[bytes]) -> Nest:
        return map_leaves(lambda tensor: tensor.numpy(), many(tf.constant(records, tf.string)))

    return parsed


def _each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``function`` of each entry of a vector, stacked."""

    def mapped(entries: Any) -> Any:
        one = tf.function(function, [_ONE]).get_concrete_function()
        signature = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), one.structured_outputs
        )
        return tf.map_fn(function, entries, fn_output_signature=signature)

    return mapped
