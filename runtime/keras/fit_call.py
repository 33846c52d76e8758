"""The arguments of a call of ``fit``, as Keras names them and as the run began it.

Many scripts load the newest file that they have saved, and give ``fit`` its epoch as
``initial_epoch``.  In a relaunch such a script asks for the epochs that are left.  But the run has
them in its checkpoint already: it goes on in the middle of the epochs that it began with.

``holdfast.fit`` is Keras's for scripts that also run without ``holdfast run``.

Its data are arrays and data that are read by number, or pipelines as feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.checkpoint.errors import CheckpointInvalid, StorageFailed
from holdfast.checkpoint.reader import StateReader
from holdfast.recovery.order import chain
from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.data.feed import Feed, check_steps, steps_of
from holdfast.runtime.data.samples import (
    MOST_PARTS,
    ArrayData,
    Data,
    SampleRange,
    WeighedByClass,
    no_classes,
)
from holdfast.runtime.data.source import (
    ListSource,
    Passes,
    Source,
    changes_by_epochs,
    is_pipeline,
)
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.training.stages import Stages
from holdfast.runtime.training.training_job import FIRST_EPOCH

_BATCH = 32
"""Keras's own default."""


@dataclass(frozen=True, slots=True)
class FitCall:
    """One call of ``fit``; every field has Keras's name, default and meaning.

    ``batch_size`` is the global batch, over all workers.  ``per_execution`` is no argument of
    ``fit``, but ``compile``'s ``steps_per_execution``.
    """

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool = True
    class_weight: Any = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1
    per_execution: int = field(default=1, kw_only=True)

    @staticmethod
    def of(*args: Any, **arguments: Any) -> FitCall:
        """Return the call with the arguments of a script.

        Raises:
            TypeError: they are not those of ``keras.Model.fit``.
        """
        try:
            return FitCall(*args, **arguments)
        except TypeError as error:
            words = str(error).replace(f"{FitCall.__name__}.__init__()", "Model.fit()")
            raise TypeError(words) from None

    def within(self, epochs: int | None, steps: int | None) -> FitCall:
        """Return the call with at most so many epochs, and steps of an epoch or a validation.

        These are the limits of ``keras.config``, None for none.
        """
        return replace(
            self,
            epochs=min(self.epochs, epochs or self.epochs),
            steps_per_epoch=_fewer(self.steps_per_epoch, steps),
            validation_steps=_fewer(self.validation_steps, steps),
        )

    def in_executions(self, steps: int | None) -> int | None:
        """Return so many steps of an epoch, or of a validation, in whole executions.

        Keras looks at the number between two executions only: an epoch of 5 has 6 with 2 of each.
        """
        return steps and -(-steps // self.per_execution) * self.per_execution

    def global_batch(self, samples: int) -> int:
        """Return the samples of one update; without a size the steps divide all samples."""
        return self.batch_size or _batch_of(samples, self.steps_per_epoch)

    def validation_batch(self, samples: int) -> int:
        """Return the samples of one batch of so many validation samples."""
        size = self.validation_batch_size or self.batch_size
        return size or _batch_of(samples, self.validation_steps)

    def steps_of_samples(self, factor: int) -> int | None:
        """Return ``steps_per_epoch`` for batches that are larger by a factor, None for a pass.

        Raises:
            ProgramError: it is less than 1.
        """
        if self.steps_per_epoch is None:
            return None
        check_steps("steps_per_epoch", self.steps_per_epoch)
        steps = self.in_executions(self.steps_per_epoch)
        assert steps is not None
        return -(-steps // factor)

    @property
    def shown(self) -> int:
        """What people see of the training: 0 for nothing, 1 for a live line, 2 for lines only."""
        return 1 if self.verbose == "auto" else int(self.verbose)

    @property
    def validated(self) -> int | tuple[int, ...]:
        """Every so many epochs are validated, or these, counted from 1."""
        if isinstance(self.validation_freq, int):
            return self.validation_freq
        return tuple(sorted(self.validation_freq))

    @property
    def epochs_to_train(self) -> int:
        """Epochs from ``initial_epoch`` to ``epochs``; 0 if there are none."""
        return max(self.epochs - self.initial_epoch, 0)


def _fewer(asked: int | None, most: int | None) -> int | None:
    """Return the smaller count; None is no limit, and 0 of ``most`` neither, as in Keras."""
    return min(asked or most, most) if most else asked


def _batch_of(samples: int, steps: int | None) -> int:
    """Return the size that Keras gives a batch; a pipeline has its own batches, and 0 samples."""
    return -(-samples // steps) if samples and steps else _BATCH


def as_begun(call: FitCall, stages: Stages) -> FitCall:
    """Return ``call`` with the ``initial_epoch`` of the next stage's checkpoints, if it has any."""
    begun = _first_epoch_of(stages)
    if begun is None or begun == call.initial_epoch:
        return call
    stages.context.notify(
        f"training {stages.stage.number} of the script began with initial_epoch={begun} and goes "
        f"on from its checkpoint: initial_epoch={call.initial_epoch}, which the script has now, "
        f"has no effect, and epochs={call.epochs} is the end"
    )
    return replace(call, initial_epoch=begun)


def _first_epoch_of(stages: Stages) -> int | None:
    """Return the first epoch of the next stage, None if no checkpoint tells it.

    All checkpoints of a stage tell the same, so it does not matter which one a worker finds.
    """
    context, stage = stages.context, stages.stage
    store = context.open_store()
    try:
        steps = store.steps()
    except StorageFailed:  # then the restore, which waits for the disk, refuses other epochs
        return None
    for step in reversed(steps):
        if not stage.may_have(step):
            return None
        try:
            cursor = StateReader(store, step, context.config.record.run_id).manifest.cursor
        except CheckpointInvalid:
            continue
        if stage.is_of(cursor):
            found = cursor.get(FIRST_EPOCH)
            return found if isinstance(found, int) else None
    return None


def fit(model: Any, *args: Any, **arguments: Any) -> Any:
    """Train a compiled Keras model on all workers of the job and return its ``History``.

    The arguments are those of ``keras.Model.fit``.  ``batch_size`` is the global batch.  Under
    ``holdfast run`` every ``model.fit`` does this; without it the script ends with the command that
    starts it.

    Raises:
        ProgramError: an argument is not valid.
        JobError: the job cannot go on; one sentence gives the reason.
        StopRequested: the job was asked to stop.  It is no ``Exception``.
    """
    from holdfast.runtime.keras import keras_fit

    try:
        call = FitCall.of(*args, **arguments)
    except TypeError as error:
        raise ProgramError(f"holdfast.fit() takes the arguments of Keras: {error}") from error
    return keras_fit.fit(model, call)


@dataclass(frozen=True, slots=True)
class FitData:
    """Samples to train on, and samples to validate with, if there are any."""

    training: Data | Feed
    validation: Data | Feed | None


def _data_of(call: FitCall, given: Data | Feed | None) -> FitData:
    """Return the data of ``call``; the last part validates if nothing is given for that."""
    if isinstance(call.x, Data):
        _check_alone(call, f"a {type(call.x).__name__}: its read(ids) returns")
        data = call.x
    else:
        if call.class_weight is not None and call.sample_weight is not None:
            raise ProgramError(
                "fit() got class_weight and sample_weight: multiply them into one sample_weight"
            )
        data = ArrayData(call.x, call.y, call.sample_weight)
    training, validation = data, given
    if call.validation_split and given is None:
        stop = _trained(len(data), call.validation_split)
        training = SampleRange(data, 0, stop)
        validation = _first_steps(SampleRange(data, stop, len(data)), call)
    if call.class_weight is not None:
        training = WeighedByClass(training, call.class_weight)
    return FitData(training, validation)


def _check_alone(call: FitCall, other: str) -> None:
    """Refuse arrays beside ``x`` that has all parts of a sample."""
    for name in ("y", "sample_weight"):
        if getattr(call, name) is not None:
            raise ProgramError(f"fit() got {name} beside {other} (x, y) or (x, y, sample_weight)")


def validation_of(call: FitCall) -> Data:
    """Return ``validation_data`` as data: arrays, or samples that are read by number already.

    With ``validation_steps`` it is the first batches of them.

    Raises:
        ProgramError: it is no tuple of arrays.
    """
    given = call.validation_data
    if isinstance(given, Data):
        return _first_steps(given, call)
    if not isinstance(given, (tuple, list)) or not 1 <= len(given) <= MOST_PARTS:
        raise ProgramError(
            f"fit(validation_data=...) got {type(given).__name__}: give (x, y), or "
            "(x, y, sample_weight)"
        )
    return _first_steps(ArrayData(*given), call)


def _first_steps(data: Data, call: FitCall) -> Data:
    """Return the samples of the first ``validation_steps`` batches, all if it is not given."""
    steps = call.validation_steps
    if steps is None:
        return data
    check_steps("validation_steps", steps)
    steps = call.in_executions(steps) or steps
    return SampleRange(data, 0, min(len(data), steps * call.validation_batch(len(data))))


def _trained(samples: int, share: float) -> int:
    """Return how many samples stay for training if a share of them validates."""
    stop = int(np.floor(samples * (1.0 - share)))
    if not 0 < stop < samples:
        raise ProgramError(
            f"fit(validation_split={share}) leaves {stop} of {samples} samples for training and "
            f"{samples - stop} for validation: both need at least one"
        )
    return stop


def hears_of_epochs(data: Data | Feed) -> Callable[[int], None] | None:
    """Return how to tell data of epochs, None if no hook of the script waits for that."""
    hearing = data.hearing if isinstance(data, Feed) else None
    return hearing.tell if hearing and changes_by_epochs(hearing.dataset) else None


def datasets_of(data: FitData) -> list[Any]:
    """Return the datasets whose state is a part of that of the training."""
    feeds = (feed for feed in (data.training, data.validation) if isinstance(feed, Feed))
    return [feed.hearing.dataset for feed in feeds if feed.hearing is not None]


_FOR_VALIDATION = 21

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
    _check_shared(call)
    left_out = no_classes(call.class_weight)
    if left_out:
        tell(
            f"class_weight[{left_out[0]!r}] weighs nothing, as in Keras: its keys are the numbers "
            "of classes, such as 0"
        )
    given: Data | Feed | None = None
    if is_pipeline(call.validation_data):
        given = validation_feed(call, seed, tell)
    elif call.validation_data is not None:
        given = validation_of(call)
    if is_pipeline(call.x):
        return FitData(training_feed(call, seed, tell), given)
    return _data_of(call, given)


def _check_shared(call: FitCall) -> None:
    """Refuse one PyDataset for both uses if it changes at the ends of epochs.

    Keras tells it of both kinds of epochs in turn.  A launch that goes on reads it for
    training first, so that other batches would follow.
    """
    if call.x is call.validation_data and is_pipeline(call.x) and changes_by_epochs(call.x):
        raise ProgramError(
            f"fit() got one {type(call.x).__name__} as x and as validation_data, and it has "
            "on_epoch_end or on_epoch_begin: each validation would change what is trained on; "
            "make two of them"
        )


def leave_pipelines(data: FitData, steps: int, validations: int) -> None:
    """Leave the pipelines of a ``fit`` that is over in the same state on all workers.

    The reader's generators have gone on, and those of the others have not.  After a relaunch
    a ``fit`` that is over reads nothing at all.
    """
    if isinstance(data.training, Feed):
        data.training.leave(steps)
    if isinstance(data.validation, Feed):
        data.validation.leave(validations * data.validation.steps)


def training_feed(call: FitCall, seed: int, tell: Tell) -> Feed:
    """Return the batches that ``call`` trains on.

    Raises:
        ProgramError: the arguments do not go with a pipeline.
    """
    _check_alone(call, "a pipeline: let its batches be")
    if call.validation_split:
        raise ProgramError(
            "fit(validation_split=...) cannot cut a pipeline: give validation_data, such as "
            "dataset.take(n), and train on dataset.skip(n)"
        )
    from holdfast.runtime.data.tf_source import source_of  # it loads TensorFlow

    passes = Passes.SHUFFLED if call.shuffle else Passes.IN_ORDER
    source = source_of(
        call.x,
        seed,
        passes=passes,
        steps=call.steps_per_epoch,
        tell=tell,
        is_once=call.epochs_to_train == 1,
    )
    steps = steps_of(source, _asked(source, call, call.steps_per_epoch), "steps_per_epoch")
    if isinstance(source, ListSource) and call.epochs_to_train > 1:
        raise ProgramError(
            f"the generator ended after {steps} batches, and fit(epochs={call.epochs}) reads it "
            "more than once: give epochs=1, or a generator that goes on and steps_per_epoch"
        )
    if steps >= NO_END:
        tell(
            f"{source.name} has no known end, and fit() no steps_per_epoch: the epoch goes on "
            "until its data end, or a callback sets model.stop_training"
        )
    feed = Feed(source, steps, call.class_weight, epochs=call.epochs_to_train)
    *_, weights = feed.first().parts  # read now, on every worker
    if call.class_weight is not None and weights is not None:
        raise ProgramError(
            "fit(class_weight=...) and sample weights in the batches exclude each other: multiply "
            "them in the pipeline"
        )
    return feed


def validation_feed(call: FitCall, seed: int, tell: Tell) -> Feed:
    """Return the batches that ``call`` validates on.

    Raises:
        ProgramError: the arguments do not go with a pipeline.
    """
    from holdfast.runtime.data.tf_source import source_of  # it loads TensorFlow

    source = source_of(
        call.validation_data,
        chain(seed, _FOR_VALIDATION),
        passes=Passes.VALIDATION,
        steps=call.validation_steps,
        tell=tell,
    )
    steps = steps_of(source, _asked(source, call, call.validation_steps), "validation_steps")
    feed = Feed(source, steps, is_validation=True)
    feed.first()  # now, on every worker: some pipelines cannot go back to it later
    return feed


def _asked(source: Source, call: FitCall, steps: int | None) -> int | None:
    """Return the steps that ``call`` asks for, whole executions if none can lack data."""
    is_known = source.batches is not None or source.repeats
    return call.in_executions(steps) if is_known else steps
