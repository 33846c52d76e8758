"""The turns of a step, and the variables and data that its values are computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow

from holdfast.runtime.model.step_plan import GraphReads, Update, turn_of

pytestmark = pytest.mark.tensorflow

CRITIC, MAKER, OPTIMIZER = 0, 1, 2


def critic_then_maker(maker_reads: tuple[tuple[int, int], ...]) -> list[Update]:
    """An update of the critic at position 10, and one of the maker at position 20."""
    return [
        Update(10, frozenset({CRITIC, OPTIMIZER}), ((CRITIC, 3), (MAKER, 4))),
        Update(20, frozenset({MAKER}), maker_reads),
    ]


@pytest.mark.parametrize(
    ("reads", "turn"),
    [
        ((), 0),
        (((CRITIC, 5),), 0),
        (((MAKER, 15),), 0),
        (((CRITIC, 15),), 1),
        (((CRITIC, 15), (MAKER, 5)), 1),
        (((CRITIC, 15), (MAKER, 25)), 2),
        (((CRITIC, 5), (CRITIC, 15)), None),
        (((CRITIC, 5), (MAKER, 25)), None),
    ],
)
def test_value_is_computed_in_the_turn_that_sees_what_it_has_read(
    reads: tuple[tuple[int, int], ...], turn: int | None
) -> None:
    updates = critic_then_maker(((CRITIC, 12),))

    assert turn_of(reads, updates, (0, 1)) == turn


A, B = 0, 1

Body = Callable[[Any, Any, Any], Any]
"""What a step makes of data and two variables: one value, or several."""


def within_a_function(data: Any, a: Any, b: Any) -> Any:
    inner = tensorflow.function(lambda x: x * b.value, autograph=False)
    return inner(a.value + 1.0)


VALUES: dict[str, tuple[Body, bool, set[int]]] = {
    "data": (lambda data, a, b: data * 2.0, True, set()),
    "constant": (lambda data, a, b: tensorflow.constant(2.0) * 3.0, False, set()),
    "variable": (lambda data, a, b: b.value + 1.0, False, {B}),
    "variable with data": (lambda data, a, b: tensorflow.exp(a.value * data) + 1.0, True, {A}),
    "both variables": (lambda data, a, b: a.value * 2.0 + b.value, False, {A, B}),
    "within a function": (within_a_function, False, {A, B}),
    "number of Python": (lambda data, a, b: 2.5, False, set()),
}


@pytest.mark.parametrize("name", VALUES)
def test_value_depends_on_what_it_was_computed_from(name: str) -> None:
    body, is_of_data, variables = VALUES[name]
    a, b = keras.Variable(1.0), keras.Variable(2.0)

    def trace(data: Any) -> None:
        value = body(data, a, b)
        reads = GraphReads(tensorflow.compat.v1.get_default_graph(), {A: a, B: b})
        assert reads.depends_on_data(value) is is_of_data
        assert {variable for variable, _ in reads.reads(value)} == variables
        traced.append(value)

    traced: list[Any] = []
    specification = tensorflow.TensorSpec((), tensorflow.float32)
    tensorflow.function(trace, autograph=False).get_concrete_function(specification)
    assert traced
