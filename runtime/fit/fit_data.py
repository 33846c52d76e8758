"""What a call of ``fit`` trains on and validates with: arrays and data, or pipelines as feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.recovery.order import chain
from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.data.feed import Feed, FeedTerms, check_class_weight, check_steps, steps_of
from holdfast.runtime.data.source import (
    ListSource,
    Passes,
    Source,
    changes_by_epochs,
    is_pipeline,
)
from holdfast.runtime.data.views import SampleRange, WeighedByClass, class_weights_of, no_classes
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.model.data import MOST_PARTS, ArrayData, Data
from holdfast.runtime.model.replica import Nest, leaves, map_leaves


@dataclass(frozen=True, slots=True)
class FitData:
    """Samples to train on, and samples to validate with, if there are any."""

    training: Data | Feed
    validation: Data | Feed | None


def data_of(call: FitCall) -> FitData:
    """Return the data of ``call``; the last part of it validates if ``validation_split`` says so.

    Raises:
        ProgramError: the arrays do not fit together.
    """
    if isinstance(call.x, Data):
        return _of_samples(call.x, call)
    parts = (call.x, call.y, call.sample_weight)
    validation = None
    if call.validation_data is not None:
        validation = validation_of(call)
    elif call.validation_split:
        parts, held_out = _split(parts, call.validation_split)
        validation = _first_steps(ArrayData(*held_out), call)
    x, y, weights = parts
    if call.class_weight is not None:
        weights = weights_of_classes(y, weights, call.class_weight)
    return FitData(ArrayData(x, y, weights), validation)


def _of_samples(data: Data, call: FitCall) -> FitData:
    """Return samples that are read by number, with what ``call`` says of them."""
    for name in ("y", "sample_weight"):
        if getattr(call, name) is not None:
            raise ProgramError(
                f"fit() got {name} beside a {type(data).__name__}: its read(ids) returns (x, y) or "
                "(x, y, sample_weight)"
            )
    training, validation = data, None
    if call.validation_data is not None:
        validation = validation_of(call)
    elif call.validation_split:
        stop = _trained(len(data), call.validation_split)
        training = SampleRange(data, 0, stop)
        validation = _first_steps(SampleRange(data, stop, len(data)), call)
    if call.class_weight is not None:
        training = WeighedByClass(training, call.class_weight)
    return FitData(training, validation)


def weights_of_classes(y: Nest, weights: Nest, by_class: Mapping[int, float]) -> Any:
    """Return the weight of each sample from that of its class, for one-hot targets too.

    A class that is not named weighs 1.  Keras weighs the losses alike.

    Raises:
        ProgramError: there are weights already, or more than one array of targets.
    """
    if weights is not None:
        raise ProgramError(
            "fit() got class_weight and sample_weight: multiply them into one sample_weight"
        )
    return class_weights_of(y, by_class)


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


def _split(parts: tuple[Nest, ...], share: float) -> tuple[tuple[Nest, ...], tuple[Nest, ...]]:
    """Return what stays for training, and the last samples, which validate."""
    stop = _trained(len(leaves(parts[0])[0]), share)
    return (
        tuple(map_leaves(lambda array: array[:stop], part) for part in parts),
        tuple(map_leaves(lambda array: array[stop:], part) for part in parts),
    )


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
    if isinstance(data, Feed) and data.dataset is not None and changes_by_epochs(data.dataset):
        return data.tell
    return None


def datasets_of(data: FitData) -> list[Any]:
    """Return the datasets whose state is a part of that of the training."""
    feeds = (feed for feed in (data.training, data.validation) if isinstance(feed, Feed))
    return [feed.dataset for feed in feeds if feed.dataset is not None]


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
    feed = Feed(source, FeedTerms(steps, call.class_weight, epochs=call.epochs_to_train))
    check_class_weight(call.class_weight, feed.first().parts)
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
    feed = Feed(source, FeedTerms(steps, is_validation=True))
    feed.first()  # now, on every worker: some pipelines cannot go back to it later
    return feed


def _asked(source: Source, call: FitCall, steps: int | None) -> int | None:
    """Return the steps that ``call`` asks for, whole executions if none can lack data."""
    is_known = source.batches is not None or source.repeats
    return call.in_executions(steps) if is_known else steps
