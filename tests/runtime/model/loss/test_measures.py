"""The metrics part of contributions: what is added, and what is settled for a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
import tensorflow

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.loss import Measures, TermKind

pytestmark = pytest.mark.tensorflow

Y = np.array([[1.0], [2.0], [4.0], [9.0], [3.0]], np.float32)
MASK = np.array([True, False, True, True, True])
WHOLE, CUT = slice(0, 5), (slice(0, 2), slice(2, 5))


def squares(rows: slice, *, masked: bool = False, reduction: str = "sum_over_batch_size") -> Any:
    """Return the squared error of predictions that are 0."""
    prediction = tensorflow.zeros(Y[rows].shape)
    if masked:
        prediction._keras_mask = tensorflow.constant(MASK[rows])
    return keras.losses.MeanSquaredError(reduction=reduction)(Y[rows], prediction)


def variables() -> list[Any]:
    return [keras.Variable(0.0), keras.Variable(np.zeros((2, 1)), dtype="float32")]


def test_what_no_reset_empties_goes_on_and_validation_counts_for_the_next_pass() -> None:
    kept, other = variables()
    kept.assign(4.0)
    measures = Measures([kept, other], carried=[0])

    epoch = measures.first_sums(5) + np.array([9.0, 2.0, 3.0, 5.0, 0.0])
    validated = measures.with_pass(epoch, np.array([1.0, 7.0, 1.0, 1.0, 0.0]))

    assert epoch.tolist() == [9.0, 6.0, 3.0, 5.0, 0.0]
    assert measures.assign(validated) == 9.0
    assert float(kept.value) == 6.0
    assert measures.carried(validated).tolist() == [0.0, 13.0, 0.0, 0.0, 0.0]


def test_tracker_of_a_masked_loss_is_that_of_the_batch(apart: Callable[..., Any]) -> None:
    """What it has of the quotient is divided once, and the rest is a mean."""
    measures = Measures([keras.Variable(0.0)], by_batch=[0])
    parts = []
    for rows in CUT:
        tracked: list[Any] = []

        def loss(rows: slice = rows, tracked: list[Any] = tracked) -> Any:
            tracked.append(2.0 * squares(rows, masked=True) + 1.0)
            return tracked[0]

        taken = apart(loss, len(Y[rows]), TermKind.RATIO)
        parts.append(measures.sums(tracked, taken, len(Y[rows]), shown=None).numpy())

    settled = measures.settle(np.sum(parts, axis=0, dtype=np.float64), 5)

    assert settled[1] == pytest.approx(2.0 * float(squares(WHOLE, masked=True)) + 1.0)


def test_validation_may_have_fewer_terms_than_training_but_no_others(
    apart: Callable[..., Any],
) -> None:
    mean = apart(lambda: squares(WHOLE), 5)
    masked = apart(lambda: squares(WHOLE, masked=True), 5, TermKind.RATIO)
    of_mean, of_masked = Measures([]), Measures([])
    of_mean.sums([], mean, 5, shown=None)
    of_masked.sums([], masked, 5, shown=None)

    assert of_masked.sums([], mean, 5, shown=None).numpy()[1:].tolist() == [0.0, 0.0]
    with pytest.raises(ProgramError, match="summed terms in validation that it does not have in"):
        of_mean.sums([], masked, 5, shown=None)
