"""The arrays or data of a call of ``fit`` as data to train on and to validate with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.model.data import MOST_PARTS, ArrayData, Data
from holdfast.runtime.model.nest import Nest, leaves, map_leaves
from holdfast.runtime.pipelines.class_weights import class_weights_of
from holdfast.runtime.pipelines.feed import Feed, check_steps
from holdfast.runtime.samples.views import SampleRange, WeighedByClass


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
