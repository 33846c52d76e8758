"""A process that runs a training script without wanting it to train: only for its model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import Data


class TrainingRefused(ProgramError):
    """A script that was only asked for its model has come to its training."""


@dataclass(frozen=True, slots=True)
class RefusedTraining:
    """What a trainer would have trained: a model or what makes one, and the samples."""

    model: Any
    data: Data


_refused: list[RefusedTraining] | None = None


@contextlib.contextmanager
def training_refused() -> Iterator[list[RefusedTraining]]:
    """Let every trainer that is run meanwhile raise ``TrainingRefused``, and list them."""
    global _refused  # noqa: PLW0603  (one script at a time)
    _refused = []
    try:
        yield _refused
    finally:
        _refused = None


def check_training(model: Any, data: Data) -> None:
    """Raise ``TrainingRefused`` if nobody wants this process to train."""
    if _refused is not None:
        _refused.append(RefusedTraining(model, data))
        raise TrainingRefused("the script is only asked for its model here, not to train it")
