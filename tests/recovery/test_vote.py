from __future__ import annotations

import functools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.vote import REFUSAL, SAVE_BITS, Bit, Wishes, ballot, outcome

_SAVE = st.lists(st.sampled_from(list(SAVE_BITS)), unique=True).map(
    lambda bits: functools.reduce(operator.or_, bits, Bit(0))
)
_VOTES = st.tuples(st.booleans(), st.booleans(), st.booleans(), _SAVE)


@given(st.lists(_VOTES, min_size=1, max_size=8))
def test_all_must_confirm_and_anyone_may_ask(votes: list[tuple[bool, bool, bool, Bit]]) -> None:
    flags = [
        ballot(is_finite=finite, wishes=Wishes(save=save, stop=stop), save=bits)
        for finite, save, stop, bits in votes
    ]

    agreed = outcome(functools.reduce(operator.and_, flags))

    assert agreed.is_yes
    assert agreed.is_finite is all(finite for finite, _, _, _ in votes)
    assert agreed.is_save_wanted is any(save for _, save, _, _ in votes)
    assert agreed.is_stop_wanted is any(stop for _, _, stop, _ in votes)
    assert agreed.save == functools.reduce(operator.and_, (bits for _, _, _, bits in votes))


@given(st.lists(_VOTES, max_size=8))
def test_one_refusal_makes_it_a_no_in_which_nothing_is_confirmed(
    votes: list[tuple[bool, bool, bool, Bit]],
) -> None:
    flags = [ballot(is_finite=f, wishes=Wishes(s, t), save=b) for f, s, t, b in votes]

    agreed = outcome(functools.reduce(operator.and_, flags, REFUSAL))

    assert not agreed.is_yes
    assert not agreed.is_finite
    assert agreed.save == Bit(0)


@pytest.mark.parametrize("bit", [Bit.STEP_OK, Bit.FINITE, Bit.NO_STOP_WANTED, Bit.NO_SAVE_WANTED])
def test_saving_cannot_set_bits_of_others(bit: Bit) -> None:
    flags = ballot(is_finite=False, wishes=Wishes(save=True, stop=True), save=bit)

    assert flags == int(Bit.STEP_OK)


def test_every_vote_fits_the_int_of_agree() -> None:
    assert 0 <= sum(Bit) < 2**31
