"""A process that runs a training script without wanting it to train: only for its model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.runtime.errors import ProgramError

_is_refused = False


class TrainingRefused(ProgramError):
    """A script that was only asked for its model has come to its training."""


@contextlib.contextmanager
def training_refused() -> Iterator[None]:
    """Let every trainer that is run meanwhile raise ``TrainingRefused``."""
    global _is_refused  # noqa: PLW0603  (one script at a time)
    _is_refused = True
    try:
        yield
    finally:
        _is_refused = False


def check_training() -> None:
    """Raise ``TrainingRefused`` if nobody wants this process to train."""
    if _is_refused:
        raise TrainingRefused("the script is only asked for its model here, not to train it")
