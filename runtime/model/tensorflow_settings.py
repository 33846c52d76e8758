"""The settings that TensorFlow's bits depend on."""

from __future__ import annotations

import keras
import tensorflow as tf

from holdfast.runtime.errors import ProgramError


def set_numerics(threads: int, seed: int, *, deterministic: bool) -> None:
    """Fix threads, seeds and determinism, before any TensorFlow operation.

    Raises:
        ProgramError: TensorFlow has been used already, with other threads.
    """
    set_threads(threads)
    keras.utils.set_random_seed(seed % (1 << 32))
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def set_threads(threads: int) -> None:
    """Let ``threads`` work inside one operation, and operations run one after the other.

    Raises:
        ProgramError: TensorFlow has been used already, with other threads.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        raise ProgramError(
            f"TensorFlow cannot be set to {threads} threads because the program has used it "
            "already: build model and data inside the function that is given to Trainer"
        ) from error
