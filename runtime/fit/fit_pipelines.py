"""The pipelines of a call of ``fit`` as feeds, and the marks of what was read of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.recovery.splitmix import chain
from holdfast.recovery.vote import Decision, Effects
from holdfast.recovery.work_plan import Work
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.fit_data import FitData, data_of, validation_of
from holdfast.runtime.model.data import Data
from holdfast.runtime.pipelines.feed import Feed, FeedTerms, check_class_weight, steps_of
from holdfast.runtime.pipelines.generator_source import ListSource
from holdfast.runtime.pipelines.stream import Mark, Position
from holdfast.runtime.pipelines.tf_pipelines import is_pipeline, source_of
from holdfast.runtime.training.companion import Commit, Companion, Notes

_FOR_VALIDATION = 21
_FIELD = "pipeline"

Tell = Callable[[str], None]
"""Shows one line to the user, once for all workers."""


def supply_of(call: FitCall, seed: int, tell: Tell) -> FitData:
    """Return what ``call`` trains on and validates with: arrays, pipelines, or one of each.

    Args:
        call: the arguments of ``fit``.
        seed: that of the stage; pipelines follow it.
        tell: shows one line to the user.

    Raises:
        ProgramError: the arrays do not fit together, or a pipeline cannot be read.
    """
    validation: Data | Feed | None = None
    if is_pipeline(call.validation_data):
        validation = validation_feed(call, seed, tell)
    if is_pipeline(call.x):
        training = training_feed(call, seed, tell)
        if validation is None and call.validation_data is not None:
            validation = validation_of(call.validation_data)
        return FitData(training, validation)
    if validation is None:
        return data_of(call)
    arrays = data_of(replace(call, validation_data=None, validation_split=0.0))
    return replace(arrays, validation=validation)


def training_feed(call: FitCall, seed: int, tell: Tell) -> Feed:
    """Return the batches that ``call`` trains on.

    Raises:
        ProgramError: the arguments do not go with a pipeline.
    """
    for name in ("y", "sample_weight"):
        if getattr(call, name) is not None:
            raise ProgramError(
                f"fit() got {name} beside a pipeline: let its batches be (x, y) or "
                "(x, y, sample_weight)"
            )
    if call.validation_split:
        raise ProgramError(
            "fit(validation_split=...) cannot cut a pipeline: give validation_data, such as "
            "dataset.take(n), and train on dataset.skip(n)"
        )
    source = source_of(
        call.x, seed, is_shuffled=call.shuffle, steps=call.steps_per_epoch, tell=tell
    )
    steps = steps_of(source, call.steps_per_epoch, "steps_per_epoch")
    if isinstance(source, ListSource) and call.epochs_to_train > 1:
        raise ProgramError(
            f"the generator ended after {steps} batches, and fit(epochs={call.epochs}) reads it "
            "more than once: give epochs=1, or a generator that goes on and steps_per_epoch"
        )
    feed = Feed(source, FeedTerms(steps, call.class_weight))
    check_class_weight(call.class_weight, feed.first().parts)
    return feed


def validation_feed(call: FitCall, seed: int, tell: Tell) -> Feed:
    """Return the batches that ``call`` validates on.

    Raises:
        ProgramError: the arguments do not go with a pipeline.
    """
    source = source_of(
        call.validation_data,
        chain(seed, _FOR_VALIDATION),
        is_shuffled=False,
        steps=call.validation_steps,
        tell=tell,
    )
    steps = steps_of(source, call.validation_steps, "validation_steps")
    return Feed(source, FeedTerms(steps, is_validation=True))


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
    def has_effects(self) -> bool:
        """Whether a round of the companion has run on whose effects the workers have to agree."""
        return self._companion.has_effects

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

    def after(self, commit: Commit) -> None:
        """See a commit."""
        self._companion.after(commit)

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
