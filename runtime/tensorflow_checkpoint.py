"""TensorFlow's own checkpoints, as ``tf.train.Checkpoint`` writes them; read only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf


def read_into(model: Any, prefix: Path) -> None:
    """Set what of a Keras model a checkpoint holds, saved as ``model=…`` or as the root itself.

    Nothing is said of what it does not hold: see which variables have changed.
    """
    names = [name for name, _ in tf.train.list_variables(str(prefix))]
    is_named = any(name.startswith("model/") for name in names)
    root = tf.train.Checkpoint(model=model) if is_named else tf.train.Checkpoint(model)
    root.read(str(prefix)).expect_partial()
