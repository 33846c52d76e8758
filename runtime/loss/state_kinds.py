"""What becomes of a variable of the model over the parts of a batch, found out by trials.

A layer or a script's own step may keep state beside the weights: moving statistics, counters,
sums.  Microbatches add their parts of it up.  So it has to be known what the state of a batch
is, seen from the states that its parts leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.errors import ProgramError

_Values = npt.NDArray[np.float64]

_OF_A_SHIFT, _ROUNDING = 2e-2, 1e-5
"""Tolerances, of the shift and of the values themselves."""


class StateKind(Enum):
    """How the state after a batch follows from the states after its parts."""

    SAME = "the batch and its parts leave the same, as a counter of steps does"
    MEAN = "it is the mean of those of the parts, weighted by samples"
    SUM = "the parts add up what they add to the value before"
    DECAYED_SUM = "the parts add up, but the value before counts once only"
    OTHER = "it is none of these, such as a maximum"


@dataclass(frozen=True, slots=True)
class StateTrial:
    """A variable before a step, and after it on a batch and on parts of it."""

    before: _Values
    whole: _Values
    parts: tuple[tuple[float, _Values], tuple[float, _Values]]
    """The two parts of the batch: its share of the samples, and the variable."""
    twice: _Values
    """After a batch that has each sample of the first part twice."""
    tolerance: float
    """As a part of what the trials change."""

    @property
    def kind(self) -> StateKind:
        """How the whole follows from the parts; a sum has to be tried again, with a shift."""
        (share, one), (other_share, other) = self.parts
        if not np.isfinite([self.whole, one, other, self.twice]).all():
            return StateKind.MEAN  # nothing is known, and the training ends at its step
        if self._agree(one, other) and self._agree(one, self.whole) and self._agrees_twice(one):
            return StateKind.SAME
        if self._agree(self.whole, share * one + other_share * other) and self._agrees_twice(one):
            return StateKind.MEAN
        base = 2 * one - self.twice
        if self._agrees_twice(one) or not self._agree(self.whole, one + other - base):
            return StateKind.OTHER
        return StateKind.SUM if self._agree(base, self.before) else StateKind.DECAYED_SUM

    def _agrees_twice(self, one: _Values) -> bool:
        return self._agree(one, self.twice)

    def _agree(self, a: _Values, b: _Values) -> bool:
        found = (self.whole, self.twice, *(value for _, value in self.parts))
        moved = max(_norm(value - self.before) for value in found)
        size = max(_norm(value) for value in (self.before, *found))
        return _norm(a - b) <= self.tolerance * moved + _ROUNDING * size


_SHIFT = 3.0
"""What is added to a sum in one more trial: a sum keeps it whole."""


def sums_tried_again(
    kinds: Mapping[str, StateKind],
    variables: Iterable[Any],
    after: Mapping[str, _Values],
    try_with: Callable[[Sequence[tuple[Any, Any]]], Mapping[str, _Values]],
) -> dict[str, StateKind]:
    """Return the kinds by path, after one more trial that tells sums from those that decay.

    ``after`` is what a trial has left in the variables.  ``try_with`` tries the same samples once
    more, with other values of some variables, and returns what is left then.
    """
    sums = [variable for variable in variables if kinds.get(variable.path) is StateKind.SUM]
    if not sums:
        return dict(kinds)
    again = try_with([(variable, _shifted(variable)) for variable in sums])
    return {**kinds, **{v.path: _of_shifted(after[v.path], again[v.path]) for v in sums}}


def _shifted(variable: Any) -> Any:
    """Return the value with which a sum is tried again."""
    return tf.cast(tf.cast(variable.value, tf.float64) + _SHIFT, variable.dtype)


def _of_shifted(after: _Values, after_shift: _Values) -> StateKind:
    """Tell a sum from one that decays, by what it becomes from its value and the shifted one."""
    difference = _norm(after_shift - after - _SHIFT)
    is_kept = difference <= _OF_A_SHIFT * _SHIFT + _ROUNDING * _norm(after)
    return StateKind.SUM if is_kept else StateKind.DECAYED_SUM


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


def is_whole(variable: Any) -> bool:
    """Return whether the variable holds integers, or truth values."""
    return bool(variable.dtype == "bool" or variable.dtype.startswith(("int", "uint")))


def _moves_by_difference(variable: Any, kind: StateKind) -> bool:
    return is_whole(variable) or kind in (StateKind.SUM, StateKind.SAME)


def _norm(values: _Values) -> float:
    return float(np.linalg.norm(values))
