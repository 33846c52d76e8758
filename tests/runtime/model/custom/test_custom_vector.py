"""The layout of a contribution: what is written where, and what is found in totals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("keras")

import keras

from holdfast.runtime.model.custom_vector import CustomVector, Weighted
from holdfast.runtime.model.graphs import ROW_FLOATS, Place
from holdfast.runtime.model.step_logs import Number, StepLogs
from holdfast.runtime.model.step_plan import StepPlan

pytestmark = pytest.mark.tensorflow

LOSS, NORMS, SCORE = Number("loss", ()), Number("norms", (2,)), Number("score", ())
SHARES, METRICS = 2, 3


def variable(*shape: int, dtype: str = "float32") -> Any:
    return keras.Variable(np.zeros(shape), dtype=dtype)


def plan_of_two_turns() -> StepPlan:
    """Return a plan with two updates in the first turn, and one and some state in the second."""
    return StepPlan(
        turns=(0, 0, 1),
        graded=((variable(3), variable(2, 2)), (variable(5),), (variable(1),)),
        moving=((variable(2), 1),),
        following=(),
        metric_turns=(0, 1),
        number_turns=(0, 1),
        logs=StepLogs(None, (LOSS, NORMS), all_results=False),
    )


def vector_of(metrics: list[Any] | None = None) -> CustomVector:
    """Return the layout of two metric variables, the first of which is a mean, and of numbers.

    In training the loss is a mean and the norms are sums, in validation the score is a mean.
    """
    return CustomVector(
        plan_of_two_turns(),
        [variable(), variable(2)] if metrics is None else metrics,
        [SCORE],
        (Weighted([True, False], [True, False]), Weighted([False, True], [True])),
    )


def written(vector: CustomVector, turn: int, share: float, value: float = 1.0) -> Any:
    """Return a contribution of tensors, metrics and numbers that are all ``value``."""
    out = np.full(vector.gradient + vector.metrics, np.nan, np.float32)
    shapes = [place.shape for place in vector.layouts[turn].places]
    metrics, numbers = [np.full((), value), np.full(2, value)], [value, np.full(2, value)]
    vector.write(out, turn, ([np.full(s, value) for s in shapes], metrics, numbers), share)
    return out


def test_both_turns_have_room_in_one_gradient_part() -> None:
    vector = vector_of()

    assert [layout.size for layout in vector.layouts] == [3 * ROW_FLOATS, 2 * ROW_FLOATS]
    assert vector.gradient == 3 * ROW_FLOATS
    assert vector.metrics == SHARES + METRICS + LOSS.size + NORMS.size + SCORE.size


@pytest.mark.parametrize(("turn", "floats"), [(0, 3 + 4 + 5), (1, 1 + 2)])
def test_contribution_is_written_whole_with_zeros_in_between(turn: int, floats: int) -> None:
    vector = vector_of()

    out = written(vector, turn, share=0.5)

    gradient = out[: vector.gradient]
    of_tensors = np.concatenate([gradient[p.start : p.stop] for p in vector.layouts[turn].places])
    assert of_tensors.tolist() == [1.0] * floats
    assert gradient.sum() == floats


def test_means_of_a_training_step_are_weighted_by_the_share() -> None:
    vector = vector_of()

    rest = written(vector, 0, share=0.25)[vector.gradient :]

    assert rest.tolist() == [0.25, 0.0, 0.25, 1.0, 1.0, 0.25, 1.0, 1.0, 0.0]


def test_validation_has_weights_and_numbers_of_its_own() -> None:
    vector = vector_of()
    out = np.full(vector.metrics, np.nan, np.float32)

    vector.write_evaluation(out, ([np.ones(()), np.ones(2)], [np.ones(())]), 0.25)

    assert out.tolist() == [0.0, 0.25, 1.0, 0.25, 0.25, 0.0, 0.0, 0.0, 0.25]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_numbers_of_a_batch_follow_from_microbatches_of_any_sizes(sizes: list[int]) -> None:
    """The loss is the mean over the samples, the norms are sums of the microbatches."""
    vector = vector_of()
    losses = [float(number) for number, _ in enumerate(sizes)]

    total = sum(
        written(vector, 0, size / sum(sizes), loss)
        for size, loss in zip(sizes, losses, strict=True)
    )

    mean = np.average(losses, weights=sizes)
    np.testing.assert_allclose(vector.numbers(total), [mean, *[sum(losses)] * 2], rtol=1e-5)


def test_numbers_of_a_batch_of_unknown_size_are_means_over_its_samples() -> None:
    """The share of a microbatch is then its number of samples."""
    vector = vector_of()

    total = written(vector, 0, share=3.0, value=2.0) + written(vector, 0, share=1.0, value=6.0)

    assert vector.numbers(total)[0] == 3.0


@pytest.mark.parametrize(
    ("shares", "is_evaluation"),
    [((1.0, 0.0), False), ((0.0, 2.0), True), ((0.0, 0.0), False)],
    ids=["training", "validation", "nothing"],
)
def test_shares_tell_validation_from_training(
    shares: tuple[float, float], *, is_evaluation: bool
) -> None:
    vector = vector_of()
    sums = np.ones(vector.metrics)
    sums[:SHARES] = shares

    assert vector.is_evaluation(sums) is is_evaluation


def test_numbers_of_validation_are_means_over_its_batches() -> None:
    vector = vector_of()
    sums = np.zeros(vector.metrics)
    sums[1], sums[-1] = 4.0, 10.0

    assert vector.evaluation_numbers(sums).tolist() == [2.5]


def test_places_of_gradients_are_those_of_their_updates() -> None:
    vector = vector_of()

    of_first, of_second = (vector.places_of_calls(turn) for turn in (0, 1))

    assert of_first == [
        (0, [Place(0, 3, (3,)), Place(16, 20, (2, 2))]),
        (1, [Place(32, 37, (5,))]),
    ]
    assert of_second == [(2, [Place(0, 1, (1,))])]


def test_metrics_hold_the_sums_beside_what_they_begin_with() -> None:
    total, counts = variable(), variable(2, dtype="int32")
    vector = vector_of([total, counts])
    sums = np.zeros(vector.metrics)
    sums[SHARES : SHARES + METRICS] = 0.5, 3.0, 4.0

    vector.assign_metrics(sums, {id(counts): np.array([10, 20])})

    assert float(total.value) == 0.5
    assert np.asarray(counts.value).tolist() == [13, 24]
    assert counts.dtype == "int32"
