from __future__ import annotations

import functools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.vote import SAVE_BITS, Bit, SavePhase, after_vote

ALL_WELL = Bit.INTACT | Bit.DURABLE | Bit.SETTLED
PENDING = Bit.INTACT


@pytest.mark.parametrize(
    ("phase", "agreed", "following"),
    [
        (SavePhase.WRITING, PENDING, SavePhase.WRITING),
        (SavePhase.WRITING, Bit.INTACT | Bit.SETTLED, SavePhase.WRITING),
        (SavePhase.WRITING, Bit.INTACT | Bit.DURABLE, SavePhase.GATHERING),
        (SavePhase.WRITING, Bit.DURABLE | Bit.SETTLED, SavePhase.FAILED),
        (SavePhase.WRITING, Bit(0), SavePhase.FAILED),
        (SavePhase.GATHERING, ALL_WELL, SavePhase.GATHERING),
        (SavePhase.GATHERING, Bit(0), SavePhase.GATHERING),
        (SavePhase.COMMITTING, Bit.INTACT | Bit.DURABLE, SavePhase.COMMITTING),
        (SavePhase.COMMITTING, ALL_WELL, SavePhase.COMMITTED),
        (SavePhase.COMMITTING, Bit.DURABLE | Bit.SETTLED, SavePhase.FAILED),
        (SavePhase.IDLE, ALL_WELL, SavePhase.IDLE),
        (SavePhase.COMMITTED, Bit(0), SavePhase.COMMITTED),
        (SavePhase.FAILED, ALL_WELL, SavePhase.FAILED),
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
        if phases[0] is SavePhase.GATHERING:  # gathered with the next transaction
            phases = [SavePhase.COMMITTING] * 3


@given(st.lists(_BITS, min_size=1, max_size=12))
def test_nothing_is_committed_unless_every_shard_was_durable_before(votes: list[Bit]) -> None:
    phase, were_durable = SavePhase.WRITING, False

    for agreed in votes:
        is_writing = phase is SavePhase.WRITING
        phase = after_vote(phase, agreed)
        were_durable = were_durable or (is_writing and Bit.DURABLE in agreed)
        if phase is SavePhase.GATHERING:
            phase = SavePhase.COMMITTING

    assert phase is not SavePhase.COMMITTED or were_durable
