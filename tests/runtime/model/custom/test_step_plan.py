"""The turns of a step, and the variables and data that its values are computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow

from holdfast.runtime.model.step_plan import GraphReads, Update, is_consistent, turn_of, turns_of

pytestmark = pytest.mark.tensorflow

CRITIC, MAKER, OPTIMIZER = 0, 1, 2


def critic_then_maker(maker_reads: tuple[tuple[int, int], ...]) -> list[Update]:
    """An update of the critic at position 10, and one of the maker at position 20."""
    return [
        Update(10, frozenset({CRITIC, OPTIMIZER}), ((CRITIC, 3), (MAKER, 4))),
        Update(20, frozenset({MAKER}), maker_reads),
    ]


def test_updates_whose_gradients_are_taken_first_share_a_turn() -> None:
    assert turns_of(critic_then_maker(((CRITIC, 5), (MAKER, 6)))) == (0, 0)


def test_gradient_that_reads_an_updated_variable_is_of_the_next_turn() -> None:
    assert turns_of(critic_then_maker(((CRITIC, 12), (MAKER, 6)))) == (0, 1)


def test_each_update_that_reads_the_one_before_takes_a_turn() -> None:
    chain = [Update(10 * n, frozenset({CRITIC}), ((CRITIC, 10 * n - 1),)) for n in range(1, 6)]

    assert turns_of(chain) == (0, 1, 2, 3, 4)


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


def test_gradient_that_needs_a_variable_of_before_is_not_of_the_turn() -> None:
    updates = critic_then_maker(((CRITIC, 5), (CRITIC, 12)))

    assert turns_of(updates) == (0, 1)
    assert not is_consistent(updates[1].reads, updates, (0, 1), 1)


A, B = 0, 1

Body = Callable[[Any, Any, Any], Any]
"""What a step makes of data and two variables: one value, or several."""


def looked_at(body: Body, poll: Callable[[GraphReads, Any], Any]) -> Any:
    """Return what ``poll`` finds out about what ``body`` makes, while both are traced."""
    a, b = keras.Variable(1.0), keras.Variable(2.0)
    found: list[Any] = []

    def trace(data: Any) -> None:
        made = body(data, a, b)
        reads = GraphReads(tensorflow.compat.v1.get_default_graph(), {A: a, B: b})
        found.append(poll(reads, made))

    specification = tensorflow.TensorSpec((), tensorflow.float32)
    tensorflow.function(trace, autograph=False).get_concrete_function(specification)
    return found[0]


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

    found = looked_at(body, lambda reads, value: (reads.depends_on_data(value), reads.reads(value)))

    assert found[0] is is_of_data
    assert {variable for variable, _ in found[1]} == variables


def test_read_before_an_update_comes_before_it_and_the_next_one_after_it() -> None:
    def step(data: Any, a: Any, b: Any) -> Any:
        before = a.value * data
        a.value.assign(tensorflow.constant(5.0))
        graph = tensorflow.compat.v1.get_default_graph()
        return before, len(graph.get_operations()), a.value * data

    def poll(reads: GraphReads, made: Any) -> Any:
        before, update, after = made
        return reads.reads(before), update, reads.reads(after)

    ((_, first),), update, ((_, second),) = looked_at(step, poll)

    assert first < update <= second


def test_variable_that_nobody_numbered_is_no_read_and_no_data() -> None:
    stranger = keras.Variable(3.0)

    found = looked_at(
        lambda data, a, b: stranger.value * a.value,
        lambda reads, value: (reads.depends_on_data(value), reads.reads(value)),
    )

    assert found[0] is False
    assert [variable for variable, _ in found[1]] == [A]
