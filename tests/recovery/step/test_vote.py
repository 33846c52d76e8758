from __future__ import annotations

import functools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.step import (
    REFUSAL,
    SAVE_BITS,
    Bit,
    SavePhase,
    Wishes,
    after_vote,
    ballot,
    outcome,
)

_SAVE = st.lists(st.sampled_from(list(SAVE_BITS)), unique=True).map(
    lambda bits: functools.reduce(operator.or_, bits, Bit(0))
)
_WISHES = st.builds(Wishes, save=st.booleans(), stop=st.booleans(), drain=st.booleans())
_VOTES = st.tuples(st.booleans(), _WISHES, _SAVE)


@given(st.lists(_VOTES, min_size=1, max_size=8))
def test_all_must_confirm_and_anyone_may_ask(votes: list[tuple[bool, Wishes, Bit]]) -> None:
    flags = [ballot(is_finite=finite, wishes=wishes, save=bits) for finite, wishes, bits in votes]

    agreed = outcome(functools.reduce(operator.and_, flags))

    assert agreed.is_yes
    assert agreed.is_finite is all(finite for finite, _, _ in votes)
    assert agreed.is_save_wanted is any(wishes.save for _, wishes, _ in votes)
    assert agreed.is_stop_wanted is any(wishes.stop for _, wishes, _ in votes)
    assert agreed.is_drain_wanted is any(wishes.drain for _, wishes, _ in votes)
    assert agreed.save == functools.reduce(operator.and_, (bits for _, _, bits in votes))


@given(st.lists(_VOTES, max_size=8))
def test_one_refusal_makes_it_a_no_in_which_nothing_is_confirmed(
    votes: list[tuple[bool, Wishes, Bit]],
) -> None:
    flags = [ballot(is_finite=f, wishes=w, save=b) for f, w, b in votes]

    agreed = outcome(functools.reduce(operator.and_, flags, REFUSAL))

    assert not agreed.is_yes
    assert not agreed.is_finite
    assert agreed.save == Bit(0)


@pytest.mark.parametrize("bit", sorted(set(Bit) - set(SAVE_BITS)))
def test_saving_cannot_set_bits_of_others(bit: Bit) -> None:
    flags = ballot(is_finite=False, wishes=Wishes(True, True, True), save=bit)

    assert flags == int(Bit.STEP_OK)


def test_every_vote_fits_the_int_of_agree() -> None:
    assert 0 <= sum(Bit) < 2**31


WELL = Bit.INTACT | Bit.SETTLED
PENDING = Bit.INTACT


@pytest.mark.parametrize(
    ("phase", "agreed", "following"),
    [
        (SavePhase.WRITING, PENDING, SavePhase.WRITING),
        (SavePhase.WRITING, Bit(0), SavePhase.WRITING),
        (SavePhase.WRITING, WELL, SavePhase.COMMITTED),
        (SavePhase.WRITING, Bit.SETTLED, SavePhase.FAILED),
        (SavePhase.COMMITTED, Bit(0), SavePhase.COMMITTED),
        (SavePhase.COMMITTED, Bit.SETTLED, SavePhase.COMMITTED),
        (SavePhase.FAILED, WELL, SavePhase.FAILED),
    ],
)
def test_phase_after_a_vote(phase: SavePhase, agreed: Bit, following: SavePhase) -> None:
    assert after_vote(phase, agreed) is following


_BITS = st.lists(st.sampled_from(list(SAVE_BITS)), unique=True).map(
    lambda bits: functools.reduce(operator.or_, bits, Bit(0))
)


@given(st.lists(st.lists(_BITS, min_size=3, max_size=3), max_size=12))
def test_all_survivors_are_in_the_same_phase_after_every_vote(votes: list[list[Bit]]) -> None:
    """Each hears only what was agreed on, so each goes the same way, and is done at most once."""
    phases = [SavePhase.WRITING] * 3

    for bits in votes:
        agreed = functools.reduce(operator.and_, bits)
        was_committed = phases[0] is SavePhase.COMMITTED
        phases = [after_vote(phase, agreed) for phase in phases]
        assert len(set(phases)) == 1
        assert not was_committed or phases[0] is SavePhase.COMMITTED


@given(st.lists(st.lists(_BITS, min_size=3, max_size=3), min_size=1, max_size=12))
def test_save_ends_only_when_all_have_heard_its_outcome(votes: list[list[Bit]]) -> None:
    """Only then is its memory free on all of them, and all begin the next one together."""
    phase = SavePhase.WRITING

    for bits in votes:
        before = phase
        phase = after_vote(phase, functools.reduce(operator.and_, bits))
        have_heard = all(Bit.SETTLED in mine for mine in bits)
        assert phase is before or have_heard
        assert before is not SavePhase.WRITING or (phase is not before) is have_heard
