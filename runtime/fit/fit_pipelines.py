"""The pipelines of a call of ``fit`` as feeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.recovery.splitmix import chain
from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.fit_data import FitData, data_of, validation_of
from holdfast.runtime.model.data import Data
from holdfast.runtime.pipelines.class_weights import no_classes
from holdfast.runtime.pipelines.feed import Feed, FeedTerms, check_class_weight, steps_of
from holdfast.runtime.pipelines.generator_source import ListSource
from holdfast.runtime.pipelines.py_dataset_source import Passes, changes_by_epochs
from holdfast.runtime.pipelines.source import Source
from holdfast.runtime.pipelines.tf_pipelines import is_pipeline, source_of

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
    validation: Data | Feed | None = None
    if is_pipeline(call.validation_data):
        validation = validation_feed(call, seed, tell)
    if is_pipeline(call.x):
        training = training_feed(call, seed, tell)
        if validation is None and call.validation_data is not None:
            validation = validation_of(call)
        return FitData(training, validation)
    if validation is None:
        return data_of(call)
    arrays = data_of(
        replace(call, validation_data=None, validation_split=0.0, validation_steps=None)
    )
    return replace(arrays, validation=validation)


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
    feed = Feed(source, FeedTerms(steps, call.class_weight, epochs=call.epochs_to_train))
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
        passes=Passes.VALIDATION,
        steps=call.validation_steps,
        tell=tell,
    )
    steps = steps_of(source, _asked(source, call, call.validation_steps), "validation_steps")
    feed = Feed(source, FeedTerms(steps, is_validation=True))
    feed.first()  # now, on every worker: some pipelines cannot go back to it later
    return feed


def _asked(source: Source, call: FitCall, steps: int | None) -> int | None:
    """Return the steps that ``call`` asks for, whole executions if none can lack data."""
    is_known = source.batches is not None or source.repeats
    return call.in_executions(steps) if is_known else steps
