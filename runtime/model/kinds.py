"""What becomes of a variable over the parts of a batch, found out by trials.

Most metrics add up values of single samples.  Others have one value of a batch, such as a function
that returns the precision of a batch: Keras shows its mean over the batches.  That of a batch in
parts is the mean over the parts, weighted by samples.  It is that of the whole batch if the value
is a mean over samples itself, and another number if it is not.

A layer or a script's own step may keep state beside the weights: moving statistics, counters, sums.
Microbatches add their parts of it up.  So it has to be known what the state of a batch is, seen
from the states that its parts leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.model_rules import is_whole

_Values = npt.NDArray[np.float64]

Values = Mapping[str, _Values]
"""Variables by path, updated from zero with some samples."""


def norm(array: npt.NDArray[np.floating[Any]]) -> float:
    """Return the Euclidean norm of an array, in float64."""
    return float(np.linalg.norm(np.asarray(array, np.float64)))


_NEAR = 1e-3
"""Tolerance, as a part of the values."""


@dataclass(frozen=True, slots=True)
class MetricKinds:
    """What is known of a model's metrics."""

    by_batch: frozenset[str] = frozenset()
    """Paths of variables that count batches, not samples."""
    of_parts: tuple[str, ...] = ()
    """Metrics whose value of a batch need not be the mean of those of its parts."""
    summed: frozenset[str] = frozenset()
    """Paths of variables that add up sums of batches, beside a count of batches."""

    def notices(self, left_out: Iterable[str] = ()) -> Iterator[str]:
        """Yield a line for each metric that may differ from that of plain Keras, if it is shown."""
        for name in self.of_parts:
            if name in left_out:
                continue
            yield (
                f"metric {name!r} is one value of a batch, not of its samples: it shows the mean "
                "of its microbatches, and may differ from plain Keras; a metric class that adds "
                "up over samples agrees, and --microbatches 1 keeps each batch whole"
            )


def leaf_metrics(metrics: Iterable[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the names and variables of metrics and of those within them, in their order.

    Variables of a metric within another belong to the inner one.
    """
    for metric in metrics:
        inner: tuple[Any, ...] = tuple(
            getattr(metric, "metrics", ()) or getattr(metric, "_metrics", ())
        )
        within = {id(v) for found in inner for v in found.variables}
        if own := tuple(v for v in metric.variables if id(v) not in within):
            yield metric.name, own
        yield from leaf_metrics(inner)


def metric_kinds(
    metrics: Iterable[Any],
    once: Values,
    twice: Values,
    try_more: Callable[[], Sequence[Values]],
) -> MetricKinds:
    """Return what becomes of the metrics over the parts of a batch.

    Args:
        metrics: those of a model.
        once: their variables after some samples.
        twice: their variables after each of these twice.
        try_more: returns them after other samples, and after both; called at need only.
    """
    suspects = []
    for name, variables in leaf_metrics(metrics):
        found: dict[str, list[str]] = {"same": [], "doubled": [], "other": [], "nothing": []}
        for path in (v.path for v in variables if v.path in once):
            found[_change(once[path], twice[path])].append(path)
        by_batch = found["same"]
        if (by_batch or found["other"]) and not found["doubled"]:
            # What tells nothing by itself goes with the others.
            by_batch = [*by_batch, *found["other"], *found["nothing"]]
        if by_batch or found["other"]:
            suspects.append((name, by_batch, found))
    if not suspects:
        return MetricKinds()
    other, both = try_more()
    of_parts = [
        name
        for name, by_batch, found in suspects
        if found["other"] or not all(_is_mean(once, other, both, p) for p in by_batch)
    ]
    summed = [path for _, _, found in suspects if found["same"] for path in found["doubled"]]
    return MetricKinds(
        frozenset(path for _, by_batch, _ in suspects for path in by_batch),
        tuple(dict.fromkeys(of_parts)),
        frozenset(summed),
    )


def _change(once: _Values, twice: _Values) -> str:
    """Return what becomes of a variable if each sample is there twice."""
    is_finite = bool(np.isfinite([once, twice]).all())
    if not is_finite or not (np.any(once) or np.any(twice)):
        return "nothing"  # zeros tell nothing
    if np.allclose(once, twice, rtol=_NEAR):
        return "same"
    return "doubled" if np.allclose(2 * once, twice, rtol=_NEAR) else "other"


def _is_mean(one: Values, other: Values, both: Values, path: str) -> bool:
    """Return whether the value of both samples is the mean; zeros do not tell."""
    if path not in other or path not in both or not np.any(both[path]):
        return False
    if not np.isfinite([one[path], other[path], both[path]]).all():
        return False
    mean = (one[path] + other[path]) / 2
    return bool(np.allclose(mean, both[path], rtol=_NEAR, atol=_NEAR * np.abs(mean).max()))


_OF_A_SHIFT, _ROUNDING = 2e-2, 1e-5
"""Tolerances, of the shift and of the values themselves."""


class StateKind(Enum):
    """How the state after a batch follows from the states after its parts."""

    SAME = "the batch and its parts leave the same, as a counter of steps does"
    MEAN = "it is the mean of those of the parts, weighted by samples"
    SUM = "the parts add up what they add to the value before"
    DECAYED_SUM = "the parts add up, but the value before counts once only"
    OTHER = "it is none of these, such as a maximum"


def state_kind(
    before: _Values,
    whole: _Values,
    parts: tuple[tuple[float, _Values], tuple[float, _Values]],
    twice: _Values,
    tolerance: float,
) -> StateKind:
    """Return how a variable after a step on a whole batch follows from that after its parts.

    A sum has to be tried again, with a shift.

    Args:
        before: the variable before the step.
        whole: the variable after a step on the batch.
        parts: the share that each part has of the samples, and the variable after it.
        twice: the variable after a batch that has each sample of the first part twice.
        tolerance: as a part of what the trials change.
    """
    (share, one), (other_share, other) = parts
    found = (whole, one, other, twice)
    if not np.isfinite(found).all():
        return StateKind.MEAN  # nothing is known, and the training ends at its step
    moved = max(norm(value - before) for value in found)
    size = max(norm(value) for value in (before, *found))

    def agree(a: _Values, b: _Values) -> bool:
        return norm(a - b) <= tolerance * moved + _ROUNDING * size

    stays = agree(one, twice)
    if stays and agree(one, other) and agree(one, whole):
        return StateKind.SAME
    if stays and agree(whole, share * one + other_share * other):
        return StateKind.MEAN
    base = 2 * one - twice
    if stays or not agree(whole, one + other - base):
        return StateKind.OTHER
    return StateKind.SUM if agree(base, before) else StateKind.DECAYED_SUM


_SHIFT = 3.0
"""What is added to a sum in one more trial: a sum keeps it whole."""


def state_kinds(
    variables: Iterable[Any],
    whole: Values,
    parts: Iterable[tuple[float, Values]],
    twice: Values,
    tolerance: float,
    try_with: Callable[[Sequence[tuple[Any, Any]]], Values],
) -> dict[str, StateKind]:
    """Return what becomes of variables over the parts of a batch, by path.

    Args:
        variables: those that may have been changed.
        whole: what a batch has left in them.
        parts: the shares of the batch's two parts, and what each of these has left.
        twice: what a batch has left that has each sample of the first part twice.
        tolerance: that of the trials.
        try_with: tries the first part once more, with other values of some variables; that tells
            sums from those that decay.
    """
    (share, one), (other_share, other) = parts
    before = {v.path: np.asarray(v.value, np.float64) for v in variables if v.path in whole}
    kinds = {}
    for path, value in whole.items():
        if all(path in found for found in (before, one, other, twice)):
            of_parts = (share, one[path]), (other_share, other[path])
            kinds[path] = state_kind(before[path], value, of_parts, twice[path], tolerance)
    sums = [variable for variable in variables if kinds.get(variable.path) is StateKind.SUM]
    if not sums:
        return kinds
    shifted = [tf.cast(tf.cast(v.value, tf.float64) + _SHIFT, v.dtype) for v in sums]
    again = try_with(list(zip(sums, shifted, strict=True)))
    for path in (variable.path for variable in sums):
        lost = norm(again[path] - one[path] - _SHIFT)
        if lost > _OF_A_SHIFT * _SHIFT + _ROUNDING * norm(one[path]):
            kinds[path] = StateKind.DECAYED_SUM
    return kinds


def travelling(variable: Any, value: Any, samples: float, kind: StateKind) -> Any:
    """Return what a microbatch adds to the total, so that `arrived` finds the variable's value.

    Counters and integers travel as differences, because a float32 holds small integers exactly.
    """
    if not _moves_by_difference(variable, kind):
        return value * samples
    if is_whole(variable):
        moved = tf.cast(value, tf.int64) - tf.cast(variable.value, tf.int64)
    else:
        moved = value - variable.value
    return tf.cast(moved, tf.float32) * (1.0 if kind is StateKind.SUM else samples)


def arrived(variable: Any, total: Any, samples: Any, kind: StateKind) -> Any:
    """Return the variable's value after a step, from the total over all microbatches."""
    found = total if kind is StateKind.SUM else total / samples
    if not _moves_by_difference(variable, kind):
        return found
    if not is_whole(variable):
        return variable.value + found
    moved = tf.cast(tf.round(found), tf.int64)
    return tf.cast(tf.cast(variable.value, tf.int64) + moved, variable.dtype)


def check_kind(variable: Any, kind: StateKind, who: str) -> None:
    """Raise ProgramError if the state of a batch cannot be put together from that of its parts."""
    if kind is StateKind.DECAYED_SUM:
        raise ProgramError(
            f"{who} adds {variable.path!r} up over the samples of a batch, and scales what it held "
            "before, which the microbatches of a batch cannot do apart: keep a mean over samples "
            "in it, take a metric such as keras.metrics.Sum, or keep each batch whole with "
            "--microbatches 1"
        )
    if is_whole(variable) and kind in (StateKind.MEAN, StateKind.OTHER):
        raise ProgramError(
            f"{who} changes {variable.path!r} of type {variable.dtype}, and the parts of a batch "
            "leave different values in it, but only float32 can be averaged: let it count steps or "
            "samples, keep it in float32, or keep each batch whole with --microbatches 1"
        )


def notices_of(kinds: Mapping[str, StateKind]) -> tuple[str, ...]:
    """Return a line for each variable, given by its path, that is no mean and no sum."""
    odd = (StateKind.OTHER, StateKind.DECAYED_SUM)
    return tuple(
        f"state {path!r} is neither a mean nor a sum over samples: a step leaves the mean of what "
        "its microbatches make of it; --microbatches 1 keeps each batch whole"
        for path, kind in kinds.items()
        if kind in odd
    )


def _moves_by_difference(variable: Any, kind: StateKind) -> bool:
    return is_whole(variable) or kind in (StateKind.SUM, StateKind.SAME)
