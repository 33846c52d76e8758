"""A companion of a training whose batches come from a pipeline: the mark of what was read.

The mark is among the notes of each checkpoint.  A launch that reads the pipeline again
compares it on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.recovery.vote import Decision, Effects
from holdfast.recovery.work_plan import Work
from holdfast.runtime.pipelines.feed import Feed
from holdfast.runtime.pipelines.stream import Mark, Position
from holdfast.runtime.training.companion import Commit, Companion, Notes, SettingsHolder

_FIELD = "pipeline"


class FedCompanion:
    """A companion, and the mark of the pipeline that its stage reads."""

    def __init__(self, companion: Companion, feed: Feed) -> None:
        self._companion = companion
        self._feed = feed

    @property
    def is_over(self) -> bool:
        """Whether the stage ends here, before the last of its steps."""
        return self._companion.is_over

    @property
    def cuts_epoch(self) -> bool:
        """Whether the epoch in hand ends here, before its last update."""
        return self._companion.cuts_epoch

    @property
    def error(self) -> Exception | None:
        """The error that the script has raised in a round of the companion."""
        return self._companion.error

    @property
    def has_effects(self) -> bool:
        """Whether a round of the companion has run on whose effects the workers have to agree."""
        return self._companion.has_effects

    def settings(self) -> Mapping[str, str]:
        """Return the settings of the companion."""
        holder = self._companion
        return holder.settings() if isinstance(holder, SettingsHolder) else {}

    def lead(self, *, is_first: bool) -> None:
        """Hear whether this worker is the first one now."""
        self._companion.lead(is_first=is_first)

    def effects(self) -> Effects:
        """Return the effects of the companion's round."""
        return self._companion.effects()

    def message(self) -> bytes:
        """Return what the first worker's companion tells the others."""
        return self._companion.message()

    def decided(self, decision: Decision, message: bytes, notes: Notes | None) -> None:
        """Let the companion take over the decision."""
        self._companion.decided(decision, message, notes)

    def restore(self, cursor: Cursor, notes: Notes | None) -> None:
        """Go on from ``cursor``, and compare what is read again with what was read then."""
        if notes is not None and notes.get(_FIELD) is not None:
            passing, within, link, is_whole = notes[_FIELD]
            self._feed.resume(Mark(Position(passing, within), link, bool(is_whole)))
        self._companion.restore(cursor, notes)

    def before(self, work: Work, cursor: Cursor) -> None:
        """See that a transaction is computed next."""
        self._companion.before(work, cursor)

    def acts_after(self, commit: Commit) -> bool:
        """Return whether code of the script runs after the commit."""
        return self._companion.acts_after(self._seen(commit))

    def after(self, commit: Commit) -> None:
        """See a commit, and tell whether its batch was the last one."""
        self._companion.after(self._seen(commit))

    def _seen(self, commit: Commit) -> Commit:
        is_last = commit.work is Work.TRAIN and self._feed.is_at_end
        return replace(commit, data_ended=True) if is_last else commit

    def end(self) -> None:
        """See that the stage is over."""
        self._companion.end()

    def notes(self) -> Notes:
        """Return the companion's notes, and the mark of the last batch."""
        mark, notes = self._feed.mark, dict(self._companion.notes())
        if mark is not None:
            at = mark.position
            notes[_FIELD] = [at.passing, at.within, mark.chain, int(mark.is_whole)]
        return notes

    def tensors(self) -> Tensors:
        """Return the companion's arrays."""
        return self._companion.tensors()

    def load(self, tensors: Tensors) -> None:
        """Take over the companion's arrays."""
        self._companion.load(tensors)


def of_pipeline(companion: Companion, training: Any) -> Companion:
    """Return the companion of a stage that trains on ``training``, data or a feed."""
    return FedCompanion(companion, training) if isinstance(training, Feed) else companion
