"""The terms of a loss, and its scale in float16; test_global_loss.py has steps of whole losses."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow

from holdfast.runtime.model.loss import LEAST_SCALE, noted_terms, skips_overflow

pytestmark = pytest.mark.tensorflow

Y = np.arange(12, dtype=np.float32).reshape(2, 3, 2)

MASK = np.array([[True, True, False], [True, False, False]])

OF_STEPS = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], np.float32)

OF_SAMPLES = np.array([[10.0], [100.0]], np.float32)

BY_WEIGHTS = "mean_with_sample_weight"


def predicted(*, is_masked: bool) -> Any:
    prediction = tensorflow.zeros(Y.shape)
    if is_masked:
        prediction._keras_mask = tensorflow.constant(MASK)
    return prediction


@pytest.mark.parametrize(
    ("reduction", "is_masked", "weights", "denominator"),
    [
        ("sum_over_batch_size", False, None, None),
        ("sum_over_batch_size", False, OF_STEPS, None),
        ("sum_over_batch_size", True, None, 3.0),
        ("sum_over_batch_size", True, OF_STEPS, 3.0),
        ("sum", True, None, None),
        ("none", True, None, None),
        (None, True, None, None),
        (BY_WEIGHTS, False, None, None),
        (BY_WEIGHTS, False, OF_STEPS, 63.0),
        (BY_WEIGHTS, True, None, 3.0),
        (BY_WEIGHTS, True, OF_STEPS, 11.0),
        (BY_WEIGHTS, True, OF_SAMPLES, 120.0),
    ],
)
def test_denominator_is_what_keras_divides_by(
    reduction: str | None, weights: Any, denominator: float | None, *, is_masked: bool
) -> None:
    with tensorflow.GradientTape(persistent=True) as tape, noted_terms(tape) as terms:
        keras.losses.MeanSquaredError(reduction=reduction)(
            Y, predicted(is_masked=is_masked), weights
        )
    (term,) = terms

    found = term.denominator
    assert (found if found is None else float(found)) == denominator
    assert (term.key is None) is (denominator is None)


def test_loss_that_calls_another_is_one_term() -> None:
    class Doubled(keras.losses.Loss):  # type: ignore[misc,name-defined]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return 2.0 * keras.losses.MeanSquaredError(reduction="none")(y_true, y_pred)

    with tensorflow.GradientTape(persistent=True) as tape, noted_terms(tape) as terms:
        Doubled()(Y, tensorflow.zeros(Y.shape))
        Doubled()(Y, tensorflow.ones(Y.shape))

    assert [term.is_added for term in terms] == [False, False]
    assert float(terms[0].value) == pytest.approx(2 * np.mean(Y**2))


def dynamic(scale: float) -> Any:
    """Return an optimizer that skips steps whose gradients overflow."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=scale)
    optimizer.build([keras.Variable([0.0])])
    return optimizer


@pytest.mark.parametrize(("scale", "is_taken"), [(LEAST_SCALE, True), (LEAST_SCALE / 2, False)])
def test_scale_that_was_halved_very_often_is_not_the_cause(scale: float, *, is_taken: bool) -> None:
    assert skips_overflow(dynamic(scale)) is is_taken
