"""The whole state of one worker: what a checkpoint holds and a peer receives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.training.companion import Companion, Notes

_CURSOR = "cursor/"
_COMPANION = "companion/"
_NOTES = "companion"
"""The field of a manifest's cursor."""
_IS_OVER = "companion is over"


class JobState:
    """The tensors of replica, companion and cursor by name, and the companion's notes."""

    def __init__(self, replica: Replica, companion: Companion) -> None:
        self.replica = replica
        self.companion = companion

    def tensors(self, cursor: Cursor) -> dict[str, npt.NDArray[np.generic]]:
        """Return all tensors, in order of names; the arrays may alias the live state."""
        tensors = dict(self.replica.state()) | cursor.tensors()
        tensors |= {_COMPANION + name: value for name, value in self.companion.tensors().items()}
        return {name: tensors[name] for name in sorted(tensors)}

    def load(self, tensors: Tensors) -> Cursor:
        """Load all tensors and return the cursor among them."""
        model, companion = {}, {}
        for name, value in tensors.items():
            if name.startswith(_COMPANION):
                companion[name.removeprefix(_COMPANION)] = value
            elif not name.startswith(_CURSOR):
                model[name] = value
        self.replica.load(model)
        self.companion.load(companion)
        return Cursor.from_tensors(tensors)

    def fields(self) -> dict[str, object]:
        """Return the fields of a manifest's cursor that hold the companion's notes."""
        notes = self.companion.notes()
        return {_NOTES: dict(notes), _IS_OVER: self.companion.is_over} if notes else {}


def notes_of(cursor: Mapping[str, object]) -> Notes | None:
    """Return the notes that a manifest's cursor holds, None if it holds none."""
    notes = cursor.get(_NOTES)
    return notes if isinstance(notes, Mapping) else None


def was_over(cursor: Mapping[str, object]) -> bool:
    """Return whether the companion had ended the stage before this cursor was saved."""
    return cursor.get(_IS_OVER) is True
