"""Terms of a loss are noted with their own denominators, and cut off from the rest of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
import tensorflow

from holdfast.runtime.model.loss import Term, noted_terms

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


def terms_of(*calls: tuple[str | None, Any, Any]) -> list[Term]:
    """Return the terms of losses: a reduction, a prediction and weights for each."""
    with tensorflow.GradientTape(persistent=True) as tape, noted_terms(tape) as terms:
        for reduction, prediction, weights in calls:
            keras.losses.MeanSquaredError(reduction=reduction)(Y, prediction, weights)
    return terms


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
    (term,) = terms_of((reduction, predicted(is_masked=is_masked), weights))

    found = term.denominator
    assert (found if found is None else float(found)) == denominator
    assert (term.key is None) is (denominator is None)


def test_terms_of_one_mask_and_the_same_weights_have_one_key() -> None:
    masked, weights = predicted(is_masked=True), tensorflow.constant(OF_STEPS)

    terms = terms_of(
        (BY_WEIGHTS, masked, weights),
        (BY_WEIGHTS, masked, weights),
        (BY_WEIGHTS, masked, tensorflow.constant(OF_STEPS)),
        (BY_WEIGHTS, predicted(is_masked=True), weights),
    )

    first, same, other_weights, other_mask = (term.key for term in terms)
    assert first == same
    assert len({first, other_weights, other_mask}) == 3


def test_rest_of_a_loss_sees_the_value_of_a_term_but_no_way_to_the_weights() -> None:
    weight = tensorflow.Variable(2.0)
    with tensorflow.GradientTape(persistent=True) as tape, noted_terms(tape) as terms:
        leaf = keras.losses.MeanSquaredError()(Y, weight * Y)
        doubled = 2.0 * leaf

    (term,) = terms
    assert term.leaf is leaf
    assert float(leaf) == float(term.value)
    assert tape.gradient(doubled, weight) is None
    assert float(tape.gradient(doubled, leaf)) == 2.0
    assert float(tape.gradient(term.value, weight)) == pytest.approx(2 * np.mean(Y**2))


def test_loss_that_calls_another_is_one_term() -> None:
    class Doubled(keras.losses.Loss):  # type: ignore[misc,name-defined]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return 2.0 * keras.losses.MeanSquaredError(reduction="none")(y_true, y_pred)

    with tensorflow.GradientTape(persistent=True) as tape, noted_terms(tape) as terms:
        Doubled()(Y, tensorflow.zeros(Y.shape))
        Doubled()(Y, tensorflow.ones(Y.shape))

    assert [term.is_added for term in terms] == [False, False]
    assert float(terms[0].value) == pytest.approx(2 * np.mean(Y**2))


def test_each_value_that_a_layer_adds_is_a_term_that_the_layer_holds() -> None:
    class Adding(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def call(self, inputs: Any) -> Any:
            self.add_loss([tensorflow.reduce_sum(inputs), tensorflow.reduce_max(inputs)])
            return inputs

    layer = Adding()
    with tensorflow.GradientTape(persistent=True) as tape, noted_terms(tape) as terms:
        layer(Y)

    assert [term.is_added for term in terms] == [True, True]
    assert [id(loss) for loss in layer.losses] == [id(term.leaf) for term in terms]
    assert [float(term.value) for term in terms] == [Y.sum(), Y.max()]


def test_nothing_is_noted_after_the_block_even_if_it_fails() -> None:
    before = keras.losses.Loss.__call__, keras.layers.Layer.add_loss
    tape = tensorflow.GradientTape(persistent=True)

    with pytest.raises(ZeroDivisionError), tape, noted_terms(tape):
        raise ZeroDivisionError

    assert (keras.losses.Loss.__call__, keras.layers.Layer.add_loss) == before
