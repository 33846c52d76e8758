"""Running a script only for its model: a ``fit`` in it refuses to train."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from holdfast.runtime.fit.import_watch import when_imported, without_log_lines
from holdfast.runtime.worker.training_refusal import Refusal, training_refused


@contextlib.contextmanager
def model_only(wanted: int = 1) -> Iterator[Refusal]:
    """Refuse each training of the script that runs meanwhile; number ``wanted`` ends it."""
    when_imported("tensorflow", _take_nothing, without_log_lines)
    when_imported("keras", _take_over)
    with training_refused(wanted) as refusal:
        try:
            yield refusal
        finally:
            _give_back()


def _take_nothing() -> None:
    """Leave TensorFlow as it is."""


def _take_over() -> None:
    from holdfast.runtime.fit import keras_fit

    keras_fit.take_over()


def _give_back() -> None:
    keras = sys.modules.get("keras")
    if keras is not None and "fit" in vars(keras.Model):
        del keras.Model.fit  # Keras's own is inherited
