"""One training of a script, among several of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.checkpoint.upkeep.retention import Wanted
from holdfast.recovery.splitmix import chain

_FIELD, _BEGIN, _AFTER_ERROR = "stage", "stage begin", "stage after error"


def stage_of(cursor: Mapping[str, object]) -> int:
    """Return the number of the stage in which a manifest with this cursor was saved."""
    number = cursor.get(_FIELD, 1)
    return number if isinstance(number, int) else 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A script may train several times, on other models or data: each time is a stage.

    All stages of a run share one count of steps: ``begin`` is the step at which the stage
    before has ended.  So a later checkpoint always has the larger step.  ``number`` counts
    from 1.  ``wanted`` are the checkpoints that a stage which is over keeps for ever.
    ``follows_error`` is whether an error of the script has ended the stage before.
    """

    number: int = 1
    begin: int = 0
    wanted: Wanted = field(default_factory=Wanted)
    follows_error: bool = False

    @property
    def before(self) -> int:
        """The last step that may have a checkpoint of an earlier stage, -1 for none."""
        return -1 if self.number == 1 else self.begin

    def seed(self, of_run: int) -> int:
        """Return the seed of the stage: each one shuffles in a way of its own."""
        return of_run if self.number == 1 else chain(of_run, self.number)

    def into(self, cursor: Mapping[str, object]) -> dict[str, object]:
        """Return a manifest's cursor with the stage in it; the first one goes without saying."""
        if self.number == 1:
            return dict(cursor)
        after = {_AFTER_ERROR: True} if self.follows_error else {}
        return {**cursor, _FIELD: self.number, _BEGIN: self.begin, **after}

    def is_of(self, cursor: Mapping[str, object]) -> bool:
        """Return whether a manifest with this cursor was saved in this stage."""
        return stage_of(cursor) == self.number

    def begins_as(self, cursor: Mapping[str, object]) -> bool:
        """Return whether a checkpoint of this stage was saved after the same earlier stages."""
        return cursor.get(_BEGIN, self.begin) == self.begin

    def is_followed_at(self, step: int, cursor: Mapping[str, object]) -> bool:
        """Return whether a checkpoint of a later stage says that this one ended at ``step``.

        Stages between the two have failed before their first step.
        """
        return stage_of(cursor) > self.number and cursor.get(_BEGIN) == step

    def was_cut_off_at(self, step: int, cursor: Mapping[str, object]) -> bool:
        """Return whether a checkpoint of a later stage says that an error ended this one there.

        It would come to the error again, from any of its checkpoints.
        """
        return self.is_followed_at(step, cursor) and cursor.get(_AFTER_ERROR) is True

    def may_have(self, step: int) -> bool:
        """Return whether a checkpoint of ``step`` may be of this stage, not of an earlier one."""
        return step > self.before

    def over(self, wanted: Wanted, step: int) -> Stage:
        """Return this stage when it is over, at ``step``."""
        return replace(self, wanted=replace(wanted, until=step))

    def after(self, step: int, *, by_error: bool = False) -> Stage:
        """Return the stage that follows when this one ends at ``step``."""
        return Stage(self.number + 1, step, follows_error=by_error)


ONLY_STAGE = Stage()
"""The stage of a script that trains once."""
