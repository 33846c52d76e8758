"""Running a training script only for its model: the trainer refuses to train."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import Data


class TrainingRefused(ProgramError):
    """A script has reached its training in a process that wants only its model."""


@dataclass(frozen=True, slots=True)
class RefusedTraining:
    """The model, or the function that makes it, and the samples of a refused training."""

    model: Any
    data: Data


_refused: list[RefusedTraining] | None = None


@contextlib.contextmanager
def training_refused() -> Iterator[list[RefusedTraining]]:
    """Let every trainer raise ``TrainingRefused`` meanwhile, and list the refused trainings."""
    global _refused  # noqa: PLW0603  (one script at a time)
    _refused = []
    try:
        yield _refused
    finally:
        _refused = None


def check_training(model: Any, data: Data) -> None:
    """Raise ``TrainingRefused`` if this process wants only the script's model."""
    if _refused is not None:
        _refused.append(RefusedTraining(model, data))
        raise TrainingRefused("the script is only asked for its model here, not to train it")
