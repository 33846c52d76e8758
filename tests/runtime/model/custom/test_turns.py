"""Which updates of a step need earlier ones, and which values no turn can compute."""

from __future__ import annotations

import pytest

from holdfast.runtime.model.step_plan import Update, is_consistent, turn_of, turns_of

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


def test_updates_keep_their_order() -> None:
    updates = [*critic_then_maker(((CRITIC, 12),)), Update(30, frozenset({7}), ((8, 2),))]

    assert turns_of(updates) == (0, 1, 1)


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
