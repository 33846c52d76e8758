"""A loss as terms with leaves, as parts with gradients, and with a scale in float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow

from holdfast.runtime.model.loss import LEAST_SCALE, LossScale, Term, TermKind, noted_terms

pytest.importorskip("keras")


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


pytest.importorskip("keras")


RANDOM = np.random.default_rng(17)

N, STEPS = 5, 3

X = RANDOM.normal(size=(N, STEPS, 2)).astype(np.float32)

PART_Y = RANDOM.normal(size=(N, STEPS, 1)).astype(np.float32)

PART_MASK = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]], bool)

WEIGHTS = RANDOM.uniform(0.5, 2.0, (N, STEPS)).astype(np.float32)

WHOLE = slice(0, N)


def squares(
    weights: Any,
    rows: slice,
    *,
    masked: bool = False,
    weighted: bool = False,
    reduction: str = "sum_over_batch_size",
) -> Any:
    """Return the loss of some samples by a loss object of Keras."""
    prediction = tensorflow.linalg.matvec(X[rows], weights)[..., None]
    if masked:
        prediction._keras_mask = tensorflow.constant(PART_MASK[rows])
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    return loss(PART_Y[rows], prediction, tensorflow.constant(WEIGHTS[rows]) if weighted else None)


Loss = Callable[[Any, slice], Any]

PART_BY_WEIGHTS: dict[str, Any] = {"weighted": True, "reduction": "mean_with_sample_weight"}


def weights_of_model() -> Any:
    return tensorflow.Variable([0.5, -1.0])


@pytest.mark.parametrize(
    ("second", "members"),
    [("mask", [(), (0, 1)]), ("weights", [(), (0,), (1,)])],
    ids=["same mask", "weights"],
)
def test_terms_of_one_mask_share_a_part(
    apart: Callable[..., Any], second: str, members: list[tuple[int, ...]]
) -> None:
    weights, mask = weights_of_model(), tensorflow.constant(PART_MASK)

    def loss() -> Any:
        prediction = tensorflow.linalg.matvec(X, weights)[..., None]
        prediction._keras_mask = mask
        first = keras.losses.MeanSquaredError()(PART_Y, prediction)
        if second == "mask":
            return first + keras.losses.MeanAbsoluteError()(PART_Y, prediction)
        return first + squares(weights, WHOLE, **PART_BY_WEIGHTS)

    parts = apart(loss, N, TermKind.RATIO, TermKind.RATIO)

    assert [part.members for part in parts.parts] == members


def test_quotients_are_found_in_a_tracker_and_means_are_not(apart: Callable[..., Any]) -> None:
    weights, tracked = weights_of_model(), []

    def loss() -> Any:
        mean, masked = squares(weights, WHOLE), squares(weights, WHOLE, masked=True)
        tracked.append(0.25 * mean + 3.0 * masked + 1.0)
        return mean + masked

    parts = apart(loss, N, TermKind.MEAN, TermKind.RATIO)
    ((name, leaf, slope, numerator),) = parts.quotients_in(tracked[0])

    assert name == ("RATIO0", 0)
    assert float(slope) == 3.0
    assert float(numerator) == pytest.approx(float(leaf) * PART_MASK.sum(), rel=1e-6)


def dynamic(scale: float) -> Any:
    """Return an optimizer that skips steps whose gradients overflow."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=scale)
    optimizer.build([keras.Variable([0.0])])
    return optimizer


def test_factor_is_what_the_optimizer_multiplies_a_loss_by() -> None:
    fixed = keras.optimizers.SGD(loss_scale_factor=8.0)

    assert float(LossScale(keras.optimizers.SGD()).factor()) == 1.0
    assert float(LossScale(fixed).factor()) == 8.0
    assert float(LossScale(dynamic(32.0)).factor()) == 32.0


@pytest.mark.parametrize(("scale", "is_taken"), [(LEAST_SCALE, True), (LEAST_SCALE / 2, False)])
def test_scale_that_was_halved_very_often_is_not_the_cause(scale: float, *, is_taken: bool) -> None:
    assert LossScale(dynamic(scale)).skips_overflow is is_taken
