"""The entry of a worker whose script may call Keras's ``fit``."""

from __future__ import annotations

import random
import sys
from typing import NoReturn

import numpy as np

from holdfast.runtime.fit.import_watch import when_imported
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.worker import worker

_NUMPY_SEEDS = 1 << 32


def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> NoReturn:
    """Run the worker that ``config`` describes, in a fresh process of the pool."""
    worker.main(config, control_fd, heartbeat_fd, prepare)


def prepare(config: WorkerConfig) -> None:
    """Give the script the same random numbers on every worker, and our ``fit``."""
    random.seed(config.seed)
    np.random.seed(config.seed % _NUMPY_SEEDS)
    when_imported("tensorflow", lambda: _prepare_tensorflow(config))
    when_imported("keras", lambda: _take_over(config))


def _prepare_tensorflow(config: WorkerConfig) -> None:
    """Fix the numerics of TensorFlow before the script uses it; leave out scopes and files."""
    from holdfast.runtime.fit import generated_code
    from holdfast.runtime.fit.strategy_scopes import leave_out
    from holdfast.runtime.model import tensorflow_settings
    from holdfast.runtime.training.stages import stages_of_script

    tensorflow_settings.set_threads(config.threads)
    generated_code.keep_in_memory()
    if config.options.fit:
        leave_out(sys.modules["tensorflow"].distribute.Strategy, stages_of_script().context.inform)


def _take_over(config: WorkerConfig) -> None:
    """Make ``keras.Model.fit`` the collective, unless the user wants it left alone."""
    from holdfast.runtime.fit import keras_fit

    keras_fit.prepare(config)
