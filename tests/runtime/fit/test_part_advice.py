"""A model that fails on a part of a batch gets advice, and its own error goes on."""

from __future__ import annotations

import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.part_advice import advice_on_parts


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
