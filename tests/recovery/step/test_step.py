from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import IllegalTransition
from holdfast.recovery.step import OVER, TRANSITIONS, StepEvent, StepState, next_state

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
ILLEGAL = [pair for pair in product(StepState, StepEvent) if pair not in TRANSITIONS]


@pytest.mark.parametrize(("events", "states"), TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_transcript(events: list[str], states: list[str]) -> None:
    state = StepState.JOINING
    seen = []

    for event in events:
        state = next_state(state, StepEvent[event])
        seen.append(state.name)

    assert seen == states


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=lambda value: value.name)
def test_unlisted_event_is_refused_by_name(state: StepState, event: StepEvent) -> None:
    with pytest.raises(IllegalTransition, match=state.value) as refusal:
        next_state(state, event)

    assert event.value in str(refusal.value)


def test_every_state_is_reachable() -> None:
    reached = {StepState.JOINING}
    while fresh := {TRANSITIONS[pair] for pair in LEGAL if pair[0] in reached} - reached:
        reached |= fresh

    assert reached == set(StepState)


@pytest.mark.parametrize("state", [state for state in StepState if state not in OVER])
def test_every_state_has_a_way_to_the_end(state: StepState) -> None:
    reached = {state}
    while fresh := {TRANSITIONS[pair] for pair in LEGAL if pair[0] in reached} - reached:
        reached |= fresh

    assert StepState.DONE in reached
    assert StepState.LOST in reached


@pytest.mark.parametrize("state", sorted(OVER, key=str))
def test_nothing_follows_the_end(state: StepState) -> None:
    assert not [pair for pair in LEGAL if pair[0] is state]


def test_every_event_is_of_use() -> None:
    assert {event for _, event in TRANSITIONS} == set(StepEvent)


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
