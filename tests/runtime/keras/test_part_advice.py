"""A model that fails on a part of a batch gets advice, and its own error goes on."""

from __future__ import annotations

import pytest

from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.keras_fit import advice_on_few_samples, advice_on_parts

pytestmark = pytest.mark.tensorflow  # the module imports it


def test_error_of_the_model_is_told_with_the_way_that_works() -> None:
    lines: list[str] = []

    with (
        pytest.raises(ValueError, match="cannot reshape"),
        advice_on_parts(8, 4, "pairs", lines.append),
    ):
        raise ValueError("cannot reshape")

    assert lines == [
        "'pairs' was tried on 8 of the samples of a batch, which is divided into 4 microbatches "
        "along its first axis: if it needs the whole batch, run with --microbatches 1"
    ]


@pytest.mark.parametrize(("error", "microbatches"), [(ProgramError("no"), 4), (ValueError(), 1)])
def test_refusal_and_whole_batch_need_no_advice(error: Exception, microbatches: int) -> None:
    lines: list[str] = []

    with pytest.raises(type(error)), advice_on_parts(8, microbatches, "pairs", lines.append):
        raise error

    assert lines == []


def test_model_that_is_built_is_not_told_of() -> None:
    lines: list[str] = []

    with advice_on_parts(8, 4, "pairs", lines.append):
        pass

    assert lines == []


@pytest.mark.parametrize(
    ("samples", "microbatches", "idle"),
    [
        (8, 4, None),
        (4, 4, None),
        (3, 4, "1 of 4"),
        (1, 4, "3 of 4"),
        (9, 16, "1 of 4"),
        (13, 16, None),
    ],
)
def test_workers_that_small_batches_leave_without_a_sample_are_counted(
    samples: int, microbatches: int, idle: str | None
) -> None:
    world = World(1, tuple(map(WorkerId, range(5))), capacity=4)

    advice = advice_on_few_samples(samples, microbatches, world)

    assert advice == (
        idle
        and f"batch_size {samples} in {microbatches} microbatches leaves {idle} workers without a "
        f"sample: take batches of {microbatches} or more"
    )
