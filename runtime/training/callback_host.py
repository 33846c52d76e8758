"""A callback host of the training: it sees every commit, and what it knows is saved with the state.

Keras's callbacks are one (`fit`).  Every worker has a callback host, and all callback hosts see the
same commits with the same metrics.  As a rule they decide alike.  A callback host that runs code
of the script has *effects*, and the workers agree on them (`job_state`).  It goes on in
rounds: what it does until the next agreement is one round.  An error that the script raises in
a round is one of its effects.  A checkpoint that was made in the middle of them says so (`Due`).

Invariant: a callback host takes no part in a transaction.  It acts between two of them, after
the commit and before a checkpoint of the new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import NO_EFFECTS, Decision, Effects
from holdfast.recovery.work_plan import Work

Notes: TypeAlias = Mapping[str, Any]
"""What a callback host knows, as a JSON object; it is kept in the manifest of a checkpoint."""

CALLBACKS = "the callbacks of fit()"
"""A setting that each callback host of the script's callbacks has: their list, in words."""

_DUE = "callbacks due"
"""The field of a manifest's cursor."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed transaction, as callback hosts see it.

    ``epoch`` counts from 1.  ``metrics`` and ``validation`` are set when the epoch is over.
    ``next_work`` is None when the job is complete.  ``validates_cut`` is whether validation
    would come next if a callback host cut the epoch here.  ``data_ended`` is whether the data of an
    epoch without a known end have ended, and so the training.
    """

    work: Work
    cursor: Cursor
    epoch: int
    has_ended_epoch: bool
    metrics: Mapping[str, float]
    validation: Mapping[str, float] | None
    next_work: Work | None
    validates_cut: bool = False
    data_ended: bool = False


class CallbackHost:
    """Goes along with one stage of the training on one worker.

    What it leaves out does nothing, so without any the class itself serves.
    """

    def restore(self, cursor: Cursor, notes: Notes | None) -> None:
        """Begin at ``cursor``, or go on from it with the ``notes`` that belong to it.

        The replica and the tensors of the callback host are loaded.  Without notes the stage
        begins.  After a repair this is called again on a worker that got a newer state.
        """
        return

    def before(self, work: Work, cursor: Cursor) -> None:
        """See that a transaction is computed next; after a repair the same one again."""
        return

    def acts_after(self, commit: Commit) -> bool:
        """Return whether code of the script runs after the commit."""
        return False

    def after(self, commit: Commit) -> None:
        """See a commit; it may change the replica's state, on all workers alike."""
        return

    @property
    def is_over(self) -> bool:
        """Whether the stage ends here, before the last of its steps."""
        return False

    @property
    def cuts_epoch(self) -> bool:
        """Whether the epoch in hand ends here, before its last update; the stage ends with it."""
        return False

    @property
    def error(self) -> Exception | None:
        """The error that the script has raised in the round; with ``is_over`` it ends the stage."""
        return None

    def end(self) -> None:
        """See that the stage is over; its last checkpoint holds what this changes."""
        return

    @property
    def has_effects(self) -> bool:
        """Whether a round has run on whose effects the workers have to agree; on all alike."""
        return False

    def lead(self, *, is_first: bool) -> None:
        """Hear before each agreement whether this worker is the first one now."""
        return

    def effects(self) -> Effects:
        """Return the effects of the round; called again if a worker dies meanwhile."""
        return NO_EFFECTS

    def message(self) -> bytes:
        """Return what the callback host of the first worker tells the others with its effects."""
        return b""

    def decided(self, decision: Decision, message: bytes, notes: Notes | None) -> None:
        """Take over the decision, the first worker's message, and its notes if they differ.

        Then the next round runs, if there is one.
        """
        return

    def settings(self) -> Mapping[str, str]:
        """Return what acts on the training, by names of the user's: all workers need the same."""
        return {}

    def notes(self) -> Notes:
        """Return what is to be known when the training goes on from here."""
        return {}

    def tensors(self) -> Tensors:
        """Return arrays that belong to the state; names and shapes never change."""
        return {}

    def load(self, tensors: Tensors) -> None:
        """Take over the arrays that ``tensors`` has returned, on this worker or another."""
        return


@dataclass(frozen=True, slots=True)
class Due:
    """A commit whose callbacks have still to run: its work, and what a validation has measured."""

    work: Work
    validation: Mapping[str, float] | None

    def into(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Return a manifest's fields with this in them; JSON has no infinity and no NaN."""
        found = {name: value.hex() for name, value in (self.validation or {}).items()}
        due = {"work": self.work.value, "validation": self.validation and found}
        return {**fields, _DUE: due}

    @staticmethod
    def of(cursor: Mapping[str, object]) -> Due | None:
        """Return what a manifest's cursor holds, None if no callbacks are due."""
        due = cursor.get(_DUE)
        if not isinstance(due, Mapping):
            return None
        found = due["validation"]
        values = None if found is None else {n: float.fromhex(v) for n, v in found.items()}
        return Due(Work(due["work"]), values)
