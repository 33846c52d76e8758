"""Parts of a loss: those of the microbatches of a batch add up to the loss of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
import tensorflow

from holdfast.runtime.model.loss import Gradients, Kind

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(17)
N, STEPS = 5, 3
X = RANDOM.normal(size=(N, STEPS, 2)).astype(np.float32)
Y = RANDOM.normal(size=(N, STEPS, 1)).astype(np.float32)
MASK = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]], bool)
WEIGHTS = RANDOM.uniform(0.5, 2.0, (N, STEPS)).astype(np.float32)
WHOLE = slice(0, N)
CUT = (slice(0, 2), slice(2, N))
SCALE = 8.0


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
        prediction._keras_mask = tensorflow.constant(MASK[rows])
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    return loss(Y[rows], prediction, tensorflow.constant(WEIGHTS[rows]) if weighted else None)


def lump(weights: Any, rows: slice) -> Any:
    """Return a loss that no loss object computes: a sum over samples."""
    errors = tensorflow.linalg.matvec(X[rows], weights) - Y[rows][..., 0]
    return tensorflow.reduce_sum(errors**2)


def penalty(weights: Any) -> Any:
    return 0.1 * tensorflow.reduce_sum(weights**2)


Loss = Callable[[Any, slice], Any]
BY_WEIGHTS: dict[str, Any] = {"weighted": True, "reduction": "mean_with_sample_weight"}

CASES: dict[str, tuple[Loss, tuple[Kind, ...], list[str]]] = {
    "mean": (squares, (), ["MEAN"]),
    "mean with weights": (lambda w, r: squares(w, r, weighted=True), (), ["MEAN"]),
    "sum": (lambda w, r: squares(w, r, reduction="sum"), (Kind.SUM,), ["MEAN", "SUM"]),
    "mask": (lambda w, r: squares(w, r, masked=True), (Kind.RATIO,), ["MEAN", "RATIO0"]),
    "weights": (lambda w, r: squares(w, r, **BY_WEIGHTS), (Kind.RATIO,), ["MEAN", "RATIO0"]),
    "mask and weights": (
        lambda w, r: squares(w, r, masked=True, **BY_WEIGHTS),
        (Kind.RATIO,),
        ["MEAN", "RATIO0"],
    ),
    "mask beside a penalty": (
        lambda w, r: 0.5 * squares(w, r, masked=True) + penalty(w),
        (Kind.RATIO,),
        ["MEAN", "RATIO0"],
    ),
    "all kinds": (
        lambda w, r: (
            squares(w, r)
            + 0.3 * squares(w, r, reduction="sum")
            + 0.5 * squares(w, r, masked=True)
            + 0.7 * squares(w, r, **BY_WEIGHTS)
        ),
        (Kind.MEAN, Kind.SUM, Kind.RATIO, Kind.RATIO),
        ["MEAN", "SUM", "RATIO0", "RATIO1"],
    ),
}


def weights_of_model() -> Any:
    return tensorflow.Variable([0.5, -1.0])


def derived(loss: Loss, weights: Any) -> tuple[Any, Any]:
    """Return loss and gradient of the whole batch, as Keras computes them."""
    with tensorflow.GradientTape() as tape:
        value = loss(weights, WHOLE)
    return value, tape.gradient(value, weights)


def _denominator(parts: tuple[Any, ...]) -> float:
    """Return what the sum over all microbatches is divided by."""
    return 1.0 if parts[0].kind is Kind.SUM else sum(float(part.denominator) for part in parts)


def assert_parts_are_the_whole(
    taken: list[Any], weights: Any, expected: tuple[Any, Any], wanted: Gradients
) -> None:
    """Add numerators, denominators and gradients up, and divide once."""
    numerators = np.sum([parts.numerators() for parts in taken], axis=0)
    of_kinds = zip(*(parts.parts for parts in taken), strict=True)
    below = np.array([_denominator(of_kind) for of_kind in of_kinds])
    gradient = np.zeros(2)
    for parts in taken:
        found = parts.gradients([weights], SCALE, wanted)
        for (of_part,), divisor in zip(found, below, strict=True):
            gradient += 0.0 if of_part is None else of_part.numpy() / divisor
    np.testing.assert_allclose(sum(numerators / below), expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, SCALE * expected[1].numpy(), rtol=1e-5)


@pytest.mark.parametrize("wanted", [Gradients.OF_SUMS, Gradients.OF_SUMS_FROM_MEANS])
@pytest.mark.parametrize("case", CASES)
def test_microbatches_add_up_to_the_loss_of_the_batch(
    apart: Callable[..., Any], case: str, wanted: Gradients
) -> None:
    loss, kinds, names = CASES[case]
    weights = weights_of_model()

    taken = [apart(lambda r=r: loss(weights, r), r.stop - r.start, *kinds) for r in CUT]

    assert all(parts.names == names for parts in taken)
    assert_parts_are_the_whole(taken, weights, derived(loss, weights), wanted)


@pytest.mark.parametrize("case", CASES)
def test_means_of_a_whole_batch_have_the_gradient_of_its_loss(
    apart: Callable[..., Any], case: str
) -> None:
    loss, kinds, _ = CASES[case]
    weights = weights_of_model()

    taken = apart(lambda: loss(weights, WHOLE), N, *kinds)

    found = taken.gradients([weights], SCALE, Gradients.OF_MEANS)
    gradient = sum(g.numpy() for (g,) in found if g is not None)
    np.testing.assert_allclose(gradient, SCALE * derived(loss, weights)[1].numpy(), rtol=1e-5)


def test_lump_that_is_a_sum_adds_up_too(apart: Callable[..., Any]) -> None:
    weights = weights_of_model()

    taken = [apart(lambda r=r: lump(weights, r), r.stop - r.start, rest=Kind.SUM) for r in CUT]

    assert [part.has_rest for part in taken[0].parts] == [False, True]
    assert_parts_are_the_whole(taken, weights, derived(lump, weights), Gradients.OF_SUMS)


def test_rest_is_what_no_term_explains(apart: Callable[..., Any]) -> None:
    weights = weights_of_model()

    parts = apart(lambda: 0.5 * squares(weights, WHOLE, masked=True) + penalty(weights), N)

    assert float(parts.rest) == pytest.approx(0.125, rel=1e-5)


@pytest.mark.parametrize(
    ("second", "members"),
    [("mask", [(), (0, 1)]), ("weights", [(), (0,), (1,)])],
    ids=["same mask", "weights"],
)
def test_terms_of_one_mask_share_a_part(
    apart: Callable[..., Any], second: str, members: list[tuple[int, ...]]
) -> None:
    weights, mask = weights_of_model(), tensorflow.constant(MASK)

    def loss() -> Any:
        prediction = tensorflow.linalg.matvec(X, weights)[..., None]
        prediction._keras_mask = mask
        first = keras.losses.MeanSquaredError()(Y, prediction)
        if second == "mask":
            return first + keras.losses.MeanAbsoluteError()(Y, prediction)
        return first + squares(weights, WHOLE, **BY_WEIGHTS)

    parts = apart(loss, N, Kind.RATIO, Kind.RATIO)

    assert [part.members for part in parts.parts] == members


def test_loss_object_within_an_added_loss_counts_once(apart: Callable[..., Any]) -> None:
    """A layer that computes its own loss object and adds half of it, beside a mean."""
    weights = weights_of_model()

    class Endpoint(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def call(self, rows: Any) -> Any:
            self.add_loss(0.5 * squares(weights, WHOLE, masked=True) + penalty(weights))
            return rows

    def loss() -> Any:
        layer = Endpoint()
        layer(X)
        return sum(layer.losses)

    parts = apart(loss, N, Kind.RATIO, Kind.MEAN)

    of_mean, of_ratio = (float(n) for n in parts.numerators())
    assert of_mean == pytest.approx(N * 0.125, rel=1e-5)
    assert of_ratio == pytest.approx(
        0.5 * float(squares(weights, WHOLE, masked=True)) * MASK.sum(), rel=1e-5
    )


def test_quotients_are_found_in_a_tracker_and_means_are_not(apart: Callable[..., Any]) -> None:
    weights, tracked = weights_of_model(), []

    def loss() -> Any:
        mean, masked = squares(weights, WHOLE), squares(weights, WHOLE, masked=True)
        tracked.append(0.25 * mean + 3.0 * masked + 1.0)
        return mean + masked

    parts = apart(loss, N, Kind.MEAN, Kind.RATIO)
    ((name, leaf, slope, numerator),) = parts.quotients_in(tracked[0])

    assert name == ("RATIO0", 0)
    assert float(slope) == 3.0
    assert float(numerator) == pytest.approx(float(leaf) * MASK.sum(), rel=1e-6)
