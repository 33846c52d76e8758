"""Running a training script only for its model: nothing is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.runtime.errors import Ending


class TrainingRefused(Ending):
    """A script has reached its training in a process that wants only its model."""


@dataclass(frozen=True, slots=True)
class RefusedTraining:
    """The model, or the function that makes it, and what reads the inputs of a first sample."""

    model: Any
    first_inputs: Callable[[], Any]


@dataclass(slots=True)
class Refusal:
    """The trainings of a script so far; the one of number ``wanted``, from 1, ends the script."""

    wanted: int
    trainings: list[RefusedTraining] = field(default_factory=list)

    @property
    def training(self) -> RefusedTraining | None:
        """The training that was wanted, None if the script has not come to it."""
        return self.trainings[self.wanted - 1] if len(self.trainings) >= self.wanted else None


_refusal: Refusal | None = None


@contextlib.contextmanager
def training_refused(wanted: int = 1) -> Iterator[Refusal]:
    """Let no training train meanwhile; the one of number ``wanted`` raises ``TrainingRefused``."""
    global _refusal  # noqa: PLW0603  (one script at a time)
    _refusal = Refusal(wanted)
    try:
        yield _refusal
    finally:
        _refusal = None


def is_refused(model: Any, first_inputs: Callable[[], Any]) -> bool:
    """Return whether this process wants only the script's model, and not this training's.

    Raises:
        TrainingRefused: it wants this training's model.
    """
    if _refusal is None:
        return False
    _refusal.trainings.append(RefusedTraining(model, first_inputs))
    if _refusal.training is not None:
        raise TrainingRefused("the script is only asked for its model here, not to train it")
    return True
