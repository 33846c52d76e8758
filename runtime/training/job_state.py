"""The whole state of one worker: what a checkpoint holds and a peer receives."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.manifest import GIVES_WAY
from holdfast.checkpoint.tensor import Tensors, digest_of
from holdfast.recovery.ledger import Cursor
from holdfast.runtime.data.feed import Pipelines
from holdfast.runtime.model.replica import FactsTeller, Replica
from holdfast.runtime.model.step_facts import StepFacts, value_of
from holdfast.runtime.script.draws import random_states
from holdfast.runtime.training.callback_host import CallbackHost, Notes

_CURSOR = "cursor/"
_NOTES = "companion"
"""The field of a manifest's cursor."""
_IS_OVER = "companion is over"
_RANDOM = "random states"


class TrainingState:
    """The tensors of replica, callback host and cursor by name, and the notes that belong to them.

    The notes are those of the callback host and of the pipelines that are read.
    """

    COMPANION = "companion/"
    """Begins the names of the callback host's tensors."""

    def __init__(
        self, replica: Replica, callback_host: CallbackHost, pipelines: Pipelines | None = None
    ) -> None:
        self.replica = replica
        self.callback_host = callback_host
        self._pipelines = pipelines or Pipelines()
        self._ended: Mapping[str, Any] | None = None
        self._ended_at = -1
        self.saved: Mapping[str, object] = {}
        """The fields of the manifest that the state was read from."""

    @functools.cached_property
    def facts(self) -> StepFacts | None:
        """What the step was made of at first, None for a replica that does not tell."""
        return self.replica.facts() if isinstance(self.replica, FactsTeller) else None

    @functools.cached_property
    def made(self) -> Mapping[str, str]:
        """The values of the weights that the script has made; asked before others are loaded."""
        state = self.replica.state().items()
        return {n: value_of(v) for n, v in state if not n.startswith("optimizer/")}

    @property
    def begin(self) -> str:
        """The digest of the weights that the script has made."""
        return digest_of(repr(list(self.made.items())).encode())

    def tensors(self, cursor: Cursor) -> dict[str, npt.NDArray[np.generic]]:
        """Return all tensors, in order of names; the arrays may alias the live state."""
        tensors = dict(self.replica.state()) | cursor.tensors()
        prefix = self.COMPANION
        tensors |= {prefix + name: value for name, value in self.callback_host.tensors().items()}
        return {name: tensors[name] for name in sorted(tensors)}

    def load(self, tensors: Tensors, *, is_own: bool = False) -> Cursor:
        """Load all tensors, unless they come from here; return the cursor among them."""
        if is_own:
            return Cursor.from_tensors(tensors)
        model, callback_host = {}, {}
        for name, value in tensors.items():
            if name.startswith(self.COMPANION):
                callback_host[name.removeprefix(self.COMPANION)] = value
            elif not name.startswith(_CURSOR):
                model[name] = value
        self.replica.load(model)
        self.callback_host.load(callback_host)
        return Cursor.from_tensors(tensors)

    def notes(self) -> Notes:
        """Return what is to be known, beside the tensors, when the training goes on from here."""
        return {**self.callback_host.notes(), **self._pipelines.notes()}

    def resume(self, cursor: Cursor, notes: Notes | None) -> None:
        """Go on at ``cursor`` with ``notes``, or begin without any; the tensors are loaded."""
        self._pipelines.resume(notes)
        self.callback_host.restore(cursor, notes)

    def fields(self, *, is_complete: bool) -> dict[str, object]:
        """Return the fields of a manifest's cursor that hold the notes.

        At the end of a stage they hold what its hooks have left the generators in.  An end by an
        error counts only if a later stage follows: else the script may be mended, and go on.
        """
        notes = self.notes()
        if not notes:
            return {}
        fields: dict[str, object] = {_NOTES: dict(notes), _IS_OVER: self.callback_host.is_over}
        if is_complete and self.callback_host.error is not None:
            fields[GIVES_WAY] = True
        return fields | {_RANDOM: random_states()} if is_complete else fields

    def restored(self, step: int, cursor: Mapping[str, object]) -> None:
        """Remember the fields of the manifest of ``step``, from which the state is read."""
        found = cursor.get(_RANDOM)
        self._ended = found if isinstance(found, Mapping) else None
        self._ended_at = step
        self.saved = cursor

    def random_at_end(self, step: int) -> Mapping[str, Any] | None:
        """Return the generators' states at the end of a stage that nobody has trained here.

        It was complete at ``step`` when it was restored; None for any other.
        """
        return self._ended if step == self._ended_at else None


def notes_of(cursor: Mapping[str, object]) -> Notes | None:
    """Return the notes that a manifest's cursor holds, None if it holds none."""
    notes = cursor.get(_NOTES)
    return notes if isinstance(notes, Mapping) else None


def is_passed_over(cursor: Mapping[str, object], *, is_followed: bool) -> bool:
    """Return whether an error has ended the stage of this cursor, and no later stage follows it."""
    return cursor.get(GIVES_WAY) is True and not is_followed


def was_over(cursor: Mapping[str, object]) -> bool:
    """Return whether the callback host had ended the stage before this cursor was saved."""
    return cursor.get(_IS_OVER) is True
