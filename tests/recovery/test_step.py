"""The next work of a worker, and what votes, effects and digests decide."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import IllegalTransition
from holdfast.recovery.step import (
    OVER,
    REFUSAL,
    SAVE_BITS,
    TRANSITIONS,
    Bit,
    Decision,
    Effects,
    StepEvent,
    StepState,
    ballot,
    compare_digests,
    decide,
    is_save_committed,
    next_state,
    outcome,
)

TRANSCRIPTS = {
    "a step that nothing disturbs": (
        ["FORMED", "CAUGHT_UP", "COMPUTED", "REDUCED", "AGREED", "APPLIED"],
        ["CATCHING_UP", "COMPUTING", "REDUCING", "VOTING", "APPLYING", "COMPUTING"],
    ),
    "a peer dies during the exchange: vote no, repair, redo": (
        ["FORMED", "CAUGHT_UP", "COMPUTED", "BROKEN", "BROKEN", "FORMED", "CAUGHT_UP", "COMPUTED"],
        [
            *("CATCHING_UP", "COMPUTING", "REDUCING", "REFUSING", "REPAIRING"),
            *("CATCHING_UP", "COMPUTING", "REDUCING"),
        ],
    ),
    "a pipeline's batch is shared before a step": (
        ["FORMED", "CAUGHT_UP", "LACKING", "GATHERED", "COMPUTED", "REDUCED"],
        ["CATCHING_UP", "COMPUTING", "GATHERING", "COMPUTING", "REDUCING", "VOTING"],
    ),
    "the reader of a pipeline dies: peers that have the batch wait for a vote": (
        ["FORMED", "CAUGHT_UP", "LACKING", "BROKEN", "BROKEN", "FORMED"],
        ["CATCHING_UP", "COMPUTING", "GATHERING", "REFUSING", "REPAIRING", "CATCHING_UP"],
    ),
    "a peer dies before anybody has a world": (
        ["BROKEN", "BROKEN", "FORMED"],
        ["REPAIRING", "REPAIRING", "CATCHING_UP"],
    ),
    "a peer dies while the state is handed round": (
        ["FORMED", "BROKEN", "FORMED", "CAUGHT_UP"],
        ["CATCHING_UP", "REPAIRING", "CATCHING_UP", "COMPUTING"],
    ),
    "the job is complete already": (
        ["FORMED", "EXHAUSTED", "SETTLED"],
        ["CATCHING_UP", "FINISHING", "DONE"],
    ),
    "a peer dies while the last checkpoint is written": (
        ["FORMED", "EXHAUSTED", "PENDING", "BROKEN", "FORMED", "EXHAUSTED", "SETTLED"],
        [
            *("CATCHING_UP", "FINISHING", "FINISHING", "REPAIRING"),
            *("CATCHING_UP", "FINISHING", "DONE"),
        ],
    ),
    "repair is hopeless": (
        ["FORMED", "CAUGHT_UP", "COMPUTED", "REDUCED", "BROKEN", "HOPELESS"],
        ["CATCHING_UP", "COMPUTING", "REDUCING", "VOTING", "REPAIRING", "LOST"],
    ),
}
LEGAL = sorted(TRANSITIONS, key=str)


_SAVE = st.lists(st.sampled_from(list(SAVE_BITS)), unique=True).map(
    lambda bits: functools.reduce(operator.or_, bits, Bit(0))
)
_VOTES = st.fixed_dictionaries(
    {
        "is_finite": st.booleans(),
        "save": _SAVE,
        "wants_save": st.booleans(),
        "wants_stop": st.booleans(),
    }
)

WELL = Bit.INTACT | Bit.SETTLED
PENDING = Bit.INTACT

QUIET = Effects(wants_stop=False, notes=b"n", state=b"s")
STOP = Effects(wants_stop=True, notes=b"n", state=b"s")
OTHER_NOTES = Effects(wants_stop=False, notes=b"m", state=b"s")
OTHER_STATE = Effects(wants_stop=False, notes=b"n", state=b"t")


@pytest.mark.parametrize(("events", "states"), TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_transcript(events: list[str], states: list[str]) -> None:
    state = StepState.JOINING
    seen = []

    for event in events:
        state = next_state(state, StepEvent[event])
        seen.append(state.name)

    assert seen == states


@pytest.mark.parametrize("state", [state for state in StepState if state not in OVER])
def test_every_state_has_a_way_to_the_end(state: StepState) -> None:
    reached = {state}
    while fresh := {TRANSITIONS[pair] for pair in LEGAL if pair[0] in reached} - reached:
        reached |= fresh

    assert StepState.DONE in reached
    assert StepState.LOST in reached


@given(st.lists(st.sampled_from(StepEvent), max_size=60))
def test_nothing_is_applied_without_a_vote_of_everyone(events: list[StepEvent]) -> None:
    """For all events in all orders, APPLYING follows only an AGREED."""
    state = StepState.JOINING
    for event in events:
        try:
            following = next_state(state, event)
        except IllegalTransition:
            continue
        if following is StepState.APPLYING:
            assert (state, event) == (StepState.VOTING, StepEvent.AGREED)
        if state is StepState.REFUSING:
            assert following is StepState.REPAIRING
        state = following


@given(st.lists(st.sampled_from(StepEvent), max_size=60))
def test_a_world_is_formed_before_anything_is_computed_again(events: list[StepEvent]) -> None:
    state, is_formed = StepState.JOINING, False
    for event in events:
        try:
            state = next_state(state, event)
        except IllegalTransition:
            continue
        is_formed = (is_formed or event is StepEvent.FORMED) and state is not StepState.REPAIRING
        if state in (StepState.COMPUTING, StepState.REDUCING, StepState.VOTING, StepState.DONE):
            assert is_formed


@given(st.lists(_VOTES, min_size=1, max_size=8))
def test_all_must_confirm_and_anyone_may_ask(votes: list[dict[str, Any]]) -> None:
    flags = [ballot(**vote) for vote in votes]

    agreed = outcome(functools.reduce(operator.and_, flags))

    assert agreed.is_yes
    assert agreed.is_finite is all(vote["is_finite"] for vote in votes)
    assert agreed.is_save_wanted is any(vote["wants_save"] for vote in votes)
    assert agreed.is_stop_wanted is any(vote["wants_stop"] for vote in votes)
    assert agreed.save == functools.reduce(operator.and_, (vote["save"] for vote in votes))


@given(st.lists(_VOTES, max_size=8))
def test_one_refusal_makes_it_a_no_in_which_nothing_is_confirmed(
    votes: list[dict[str, Any]],
) -> None:
    flags = [ballot(**vote) for vote in votes]

    agreed = outcome(functools.reduce(operator.and_, flags, REFUSAL))

    assert not agreed.is_yes
    assert not agreed.is_finite
    assert agreed.save == Bit(0)


@pytest.mark.parametrize(
    ("agreed", "is_committed"),
    [(PENDING, None), (Bit(0), None), (WELL, True), (Bit.SETTLED, False)],
    ids=["being written", "refused", "durable", "failed"],
)
def test_save_is_over_once_all_know_its_outcome(
    agreed: Bit,
    is_committed: bool | None,  # noqa: FBT001
) -> None:
    assert is_save_committed(agreed) is is_committed


@pytest.mark.parametrize("event", list(StepEvent))
@pytest.mark.parametrize("state", list(StepState))
def test_event_is_obeyed_or_refused_by_name(state: StepState, event: StepEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{state.value} cannot see .*{event.value}"):
            next_state(state, event)


@pytest.mark.parametrize(
    ("effects", "decision"),
    [
        ([QUIET], Decision(False, False, False)),
        ([STOP], Decision(True, False, False)),
        ([OTHER_STATE], Decision(False, False, False)),
        ([QUIET, QUIET, QUIET], Decision(False, False, False)),
        ([QUIET, STOP], Decision(True, False, False)),
        ([STOP, QUIET, QUIET], Decision(True, False, False)),
        ([QUIET, OTHER_NOTES], Decision(False, True, False)),
        ([OTHER_NOTES, QUIET], Decision(False, True, False)),
        ([QUIET, QUIET, OTHER_STATE], Decision(False, False, True)),
        ([OTHER_NOTES, OTHER_STATE, STOP], Decision(True, True, True)),
    ],
)
def test_one_decision_follows_from_all_effects(effects: list[Effects], decision: Decision) -> None:
    assert decide(effects) == decision


@pytest.mark.parametrize(
    ("digests", "minority"),
    [
        ("a", ()),
        ("aa", ()),
        ("ab", (0, 1)),
        ("aab", (2,)),
        ("baa", (0,)),
        ("abc", (0, 1, 2)),
        ("aabb", (0, 1, 2, 3)),
        ("aabc", (0, 1, 2, 3)),
        ("abaca", (1, 3)),
    ],
)
def test_more_than_half_are_right(digests: str, minority: tuple[int, ...]) -> None:
    assert compare_digests([digest.encode() for digest in digests]) == minority
