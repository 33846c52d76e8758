"""What a job reads its batches from: steps of a stage, or passes of validation.

The mark of what was read of a pipeline is among the notes of each checkpoint.  A launch that reads
the pipeline again compares it on the way.  It tells a PyDataset of as many epochs as it has heard
of, with the model as it is by then.  What the dataset was like comes after that (`callbacks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.data.batch import OwnRows, Parts, WholeBatch
from holdfast.runtime.data.samples import class_weights_of
from holdfast.runtime.data.source import ForwardSource, PyDatasetSource, Source
from holdfast.runtime.data.stream import (
    Alone,
    BatchShare,
    Mark,
    RowStream,
    SharedStream,
    StreamPosition,
)
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.membership import Communicator


class Feed:
    """Batches by step, read by one worker and shared with all.

    Args:
        source: what is read.
        steps: batches of one epoch, or of one validation.
        class_weight: weights by the class that y names, None for none.
        is_validation: whether all batches of a validation may be wanted again.
        epochs: epochs that are asked for.
    """

    def __init__(
        self,
        source: Source,
        steps: int,
        class_weight: Mapping[int, float] | None = None,
        *,
        is_validation: bool = False,
        epochs: int = 1,
    ) -> None:
        self._source = source
        self.name = source.name
        """The pipeline in the user's words."""
        self.hearing = source if isinstance(source, PyDatasetSource) else None
        """The dataset that hears of epochs, and whose state may say what the batches are."""
        self.steps = steps
        """Batches of one epoch, or of one validation."""
        self._class_weight = class_weight
        self._is_validation = is_validation
        self._epochs = epochs
        # A validation that is done again after a death begins anew, and some cannot go back.
        kept = steps if is_validation and isinstance(source, ForwardSource) else 2
        self._shared = SharedStream(source, kept)
        rows = getattr(source, "rows", None)
        self._rows = None if rows is None else RowStream(rows)
        self._samples = None if rows is None else rows.fingerprint
        self._last: StreamPosition | None = None
        self._fetched: StreamPosition | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the batch of the last step is the last of an epoch without a known end."""
        return self._last is not None and self._last == self._fetched

    @property
    def pass_batches(self) -> int | None:
        """Batches after which an epoch ends at the latest, None if there is no such end."""
        return None if self._source.repeats else self._source.batches

    @property
    def mark(self) -> Mark | None:
        """The proof of what was read so far, for a checkpoint."""
        return self._shared.mark

    def fingerprint(self) -> str | None:
        """Return a digest of all samples and of the first batch, None if one worker reads for all.

        It stands for a mark: the order of samples follows from the seeds of the pipeline.
        """
        if self._samples is None:
            return None
        return f"{self._samples} {self.first().digest:016x}"

    def resume(self, mark: Mark | None) -> None:
        """Go on with the batch after ``mark``, and compare on the way.

        Only where one worker reads for all there is a mark.  So has one that was made before
        workers read their own rows, and then the run goes on as it was.
        """
        self._rows = None
        self._shared.resume(mark)

    def first(self) -> WholeBatch:
        """Return the first batch, which this worker reads itself; its shapes build a model.

        Raises:
            ProgramError: there is none.
        """
        batch = self._shared.first()
        if batch is None:
            raise ProgramError(f"{self.name} gave no batch: it is empty")
        if self._rows is not None:
            self._shared.release()  # it is not read on
        return batch

    def leave(self, batches: int) -> None:
        """Leave the pipeline as if this worker had read so many batches, in all.

        A script may give the same generator or PyDataset to another ``fit``.  Every worker
        calls this, whether it has read for all or not.  Without any batch it is left as it is:
        at most the first one was read, on every worker alike.
        """
        each = self._source.batches
        position = StreamPosition(*divmod(batches, each)) if each else StreamPosition(0, batches)
        if self._is_validation:
            position = self._of_validation(*divmod(batches, self.steps))
        elif self._looks_ahead:
            position = StreamPosition(0, batches + 1)  # as far as the reader has looked
        if batches:
            self._source.leave(position.passing, position.within)

    def train_batch(
        self,
        step: int,
        communicator: Communicator,
        alone: Alone = nullcontext,
        share: BatchShare | None = None,
    ) -> WholeBatch | OwnRows:
        """Return the batch of update ``step`` of the stage, from 0; all workers call this.

        With ``share`` it need not have other rows.

        Raises:
            WorldBroken: a member died.
            ProgramError: there is no such batch.
        """
        each = self._source.batches
        position = StreamPosition(*divmod(step, each)) if each else StreamPosition(0, step)
        batch = self._fetch(position, communicator, alone, share)
        if self._looks_ahead:
            self._look_ahead(position, communicator, alone)
        return batch

    @property
    def _looks_ahead(self) -> bool:
        """Whether the last batch is known by the end after it only."""
        return self.steps >= NO_END and not self._source.repeats

    def _look_ahead(
        self, position: StreamPosition, communicator: Communicator, alone: Alone
    ) -> None:
        """Look whether the batch at ``position`` is the last one: its step ends the epoch then.

        Raises:
            ProgramError: it is, and another epoch is asked for.
        """
        self._fetched, after = position, position.within + 1
        if self._shared.has(StreamPosition(position.passing, after), communicator, alone):
            return
        self._last = position
        if self._epochs > 1:
            raise ProgramError(
                f"{self.name} ended after {after} batches, and fit(epochs={self._epochs}) "
                f"reads it more than once: give epochs=1, steps_per_epoch, or a tf.data.Dataset "
                f"with assert_cardinality({after})"
            )

    def validation_batch(
        self,
        number: tuple[int, int],
        communicator: Communicator,
        alone: Alone = nullcontext,
        share: BatchShare | None = None,
    ) -> WholeBatch | OwnRows:
        """Return a batch of a validation, ``number``, both counted from 0; all workers call this.

        With ``share`` it need not have other rows.

        Raises:
            WorldBroken: a member died.
            ProgramError: there is no such batch.
        """
        return self._fetch(self._of_validation(*number), communicator, alone, share)

    def _of_validation(self, validation: int, step: int) -> StreamPosition:
        """Return the position of a batch: each validation begins a pass, as in Keras."""
        each = self._source.batches
        if not each or each >= self.steps:
            return StreamPosition(validation, step)
        passes = -(-self.steps // each)  # a pipeline that repeats itself has several in each
        return StreamPosition(validation * passes + step // each, step % each)

    def parts(self, batch: WholeBatch | OwnRows, start: int, stop: int) -> Parts:
        """Return the samples ``start <= sample < stop`` of a batch, with their weights."""
        x, y, weights = batch.rows(start, stop)
        if self._class_weight is not None:
            weights = class_weights_of(y, self._class_weight)
        return x, y, weights

    def _fetch(
        self,
        position: StreamPosition,
        communicator: Communicator,
        alone: Alone,
        share: BatchShare | None,
    ) -> WholeBatch | OwnRows:
        if self.hearing is not None:  # on all workers: another one may read the next batch
            calls = self.hearing.calls_before(position.passing, position.within)
            if calls > self.hearing.told:
                with alone():
                    self.hearing.tell(calls)
        batch: WholeBatch | OwnRows | None
        if self._rows is not None and share is not None:
            with alone():
                batch = self._rows.fetch(position, share)
        else:
            batch = self._shared.fetch(position, communicator, alone)
        if batch is None:
            raise ProgramError(
                f"{self._source.name} ended before {position.words}: give .repeat(), a "
                "generator that goes on, fewer epochs or fewer steps; a Dataset with "
                f"assert_cardinality({position.within}) has epochs that end with each pass"
            )
        return batch


_MARK, _TOLD = "pipeline", "told"


class Pipelines:
    """The pipelines of a stage: what was read of them, and how often they were told of epochs.

    Args:
        training: what it trains on; counts if it is a feed.
        validation: the same for what it validates with.
    """

    def __init__(self, training: object = None, validation: object = None) -> None:
        self._training = training if isinstance(training, Feed) else None
        self._all = [feed for feed in (training, validation) if isinstance(feed, Feed)]

    def resume(self, notes: Mapping[str, Any] | None) -> None:
        """Go on from ``notes``, and compare what is read again with what was read then."""
        if notes is not None and notes.get(_MARK) is not None and self._training is not None:
            passing, within, link, is_whole, *last = notes[_MARK]
            self._training.resume(
                Mark(StreamPosition(passing, within), link, bool(is_whole), *last)
            )
        told = [1] if self._training is not None else []  # Keras resets what it reads
        if notes is not None:
            told = notes.get(_TOLD, told)
        for feed, calls in zip(self._all, told, strict=False):
            if feed.hearing is not None:
                feed.hearing.tell(calls)

    def notes(self) -> dict[str, Any]:
        """Return the mark of the last batch, and what was told, for a checkpoint."""
        notes: dict[str, Any] = {}
        told = [feed.hearing.told if feed.hearing else 0 for feed in self._all]
        if any(told):
            notes[_TOLD] = told
        mark = None if self._training is None else self._training.mark
        if mark is not None:
            at = mark.position
            notes[_MARK] = [at.passing, at.within, mark.chain, int(mark.is_whole), mark.last]
        return notes


def check_steps(argument: str, steps: int) -> None:
    """Raise ProgramError unless there is at least one step; ``argument`` is that of ``fit``."""
    if steps < 1:
        raise ProgramError(f"fit({argument}={steps}): give at least 1, or leave it out")


def steps_of(source: Source, asked: int | None, argument: str) -> int:
    """Return the number of batches of an epoch, or of a validation.

    Args:
        source: what is read.
        asked: the value of ``argument``, None if it was not given.
        argument: "steps_per_epoch" or "validation_steps".

    Training without an end goes on until a callback ends it, or its data end, as in Keras.

    Raises:
        ProgramError: nobody knows.
    """
    if asked is not None:
        check_steps(argument, asked)
    elif argument == "steps_per_epoch" and (source.batches is None or source.repeats):
        return NO_END
    if source.batches is not None and (asked is None or not source.repeats):
        return min(asked or source.batches, source.batches)
    if asked is None:
        raise ProgramError(
            f"{source.name} does not end by itself: give fit({argument}=...), the number of its "
            "batches to take each time"
        )
    return asked
