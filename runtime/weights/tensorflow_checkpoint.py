"""TensorFlow's own checkpoints, as ``tf.train.Checkpoint`` writes them; read only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf


def read_into(model: Any, path: Path) -> None:
    """Set the variables of a Keras model that a checkpoint holds.

    The model may have been saved as ``model=…`` or as the root itself.  ``path`` is the
    prefix of a checkpoint, or a directory, whose newest checkpoint is read.  Variables that
    the checkpoint lacks stay as they are, without a warning.

    Raises:
        OSError: there is no whole checkpoint.
    """
    try:
        prefix = _newest_in(path) if path.is_dir() else str(path)
        names = [name for name, _ in tf.train.list_variables(prefix)]
        is_named = any(name.startswith("model/") for name in names)
        root = tf.train.Checkpoint(model=model) if is_named else tf.train.Checkpoint(model)
        root.read(prefix).expect_partial()
    except tf.errors.InvalidArgumentError:  # for example a dtype: another model's checkpoint
        raise
    except (tf.errors.OpError, IndexError) as error:  # IndexError: the data are cut short
        raise OSError(str(error)) from error


def _newest_in(directory: Path) -> str:
    prefix = tf.train.latest_checkpoint(str(directory))
    if prefix is None:
        raise OSError(f"the newest checkpoint that {directory} names is not there")
    return str(prefix)
