"""What a world agrees on: votes, the saves that they move, the worker's machine, and silence."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.detector import FailureDetector, HeartbeatView, SilenceLimits
from holdfast.recovery.errors import IllegalTransition
from holdfast.recovery.step import (
    OVER,
    REFUSAL,
    SAVE_BITS,
    TRANSITIONS,
    Bit,
    SavePhase,
    StepEvent,
    StepState,
    Wishes,
    after_vote,
    ballot,
    next_state,
    outcome,
)
from holdfast.recovery.world import WorkerId

FLAGS = st.integers(0, 63)
BALLOTS = st.builds(
    ballot,
    is_finite=st.booleans(),
    wishes=st.builds(Wishes, st.booleans(), st.booleans()),
    save=st.integers(0, 63).map(Bit),
)


def agree(flags: Sequence[int]) -> int:
    """Return what MPI's agreement makes of the flags."""
    return functools.reduce(operator.and_, flags)


# --- votes --------------------------------------------------------------------------------------


@given(st.lists(BALLOTS, min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_outcome_does_not_depend_on_the_order_of_ranks(
    votes: list[int],
    random,  # type: ignore[no-untyped-def]  # noqa: ANN001
) -> None:
    shuffled = list(votes)
    random.shuffle(shuffled)

    assert outcome(agree(shuffled)) == outcome(agree(votes))


@given(BALLOTS)
def test_vote_of_one_is_what_it_voted(vote: int) -> None:
    assert outcome(vote).is_yes
    assert outcome(agree([vote, vote])) == outcome(vote)


@given(st.lists(BALLOTS, min_size=1, max_size=9), BALLOTS)
def test_one_more_voter_confirms_nothing_and_withdraws_no_wish(votes: list[int], more: int) -> None:
    before, after = outcome(agree(votes)), outcome(agree([*votes, more]))

    assert before.is_finite or not after.is_finite
    assert after.is_save_wanted or not before.is_save_wanted
    assert after.is_stop_wanted or not before.is_stop_wanted
    assert after.is_drain_wanted or not before.is_drain_wanted
    assert after.save & ~before.save == Bit(0)


@given(st.lists(BALLOTS, max_size=9))
def test_refusal_asks_for_all_and_confirms_nothing(votes: list[int]) -> None:
    agreed = outcome(agree([*votes, REFUSAL]))

    assert (agreed.is_yes, agreed.is_finite, agreed.save) == (False, False, Bit(0))


@given(FLAGS)
def test_bits_of_a_save_are_told_apart_from_those_of_the_step(flags: int) -> None:
    assert outcome(flags).save == Bit(flags) & SAVE_BITS
    assert not outcome(flags).save & (Bit.STEP_OK | Bit.FINITE)


def test_bits_are_powers_of_two_without_a_gap() -> None:
    assert sorted(bit.value for bit in Bit) == [2**place for place in range(len(Bit))]


# --- saves --------------------------------------------------------------------------------------

PHASES = st.sampled_from(SavePhase)
BITS = st.integers(0, 63).map(Bit)


@given(PHASES, BITS)
def test_vote_moves_a_save_only_where_it_waits_for_one(phase: SavePhase, agreed: Bit) -> None:
    following = after_vote(phase, agreed)

    is_moved = phase is SavePhase.WRITING and Bit.SETTLED in agreed
    assert (following is not phase) is is_moved
    if is_moved:
        assert (following is SavePhase.FAILED) is (Bit.INTACT not in agreed)


@given(BITS, BITS)
def test_what_does_not_concern_a_save_does_not_move_it(agreed: Bit, others: Bit) -> None:
    for phase in SavePhase:
        mixed = agreed & SAVE_BITS | others & ~SAVE_BITS
        assert after_vote(phase, mixed) is after_vote(phase, agreed)


@given(st.lists(BITS, max_size=20))
def test_save_ends_once(votes: list[Bit]) -> None:
    phases = [SavePhase.WRITING]
    for agreed in votes:
        phases.append(after_vote(phases[-1], agreed))

    changes = sum(before is not after for before, after in itertools.pairwise(phases))
    assert changes <= 1
    assert (phases[-1] is SavePhase.WRITING) is all(Bit.SETTLED not in bits for bits in votes)


# --- the worker's machine -----------------------------------------------------------------------


def test_only_death_leads_to_repair() -> None:
    causes = {event for (_, event), to in TRANSITIONS.items() if to is StepState.REPAIRING}

    assert causes == {StepEvent.BROKEN}


def test_every_exchange_can_break_and_nothing_else_can() -> None:
    """What a worker does alone ends well or kills the worker."""
    breakable = {state for state, event in TRANSITIONS if event is StepEvent.BROKEN}

    alone = {StepState.COMPUTING, StepState.APPLYING, *OVER}
    assert breakable == set(StepState) - alone


def test_repair_leads_back_to_work_through_catching_up_alone() -> None:
    ways = {to for (state, _), to in TRANSITIONS.items() if state is StepState.REPAIRING}

    assert ways == {StepState.REPAIRING, StepState.CATCHING_UP, StepState.LOST}


@pytest.mark.parametrize("event", list(StepEvent))
@pytest.mark.parametrize("state", list(StepState))
def test_event_is_obeyed_or_refused_by_name(state: StepState, event: StepEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{state.value} cannot see .*{event.value}"):
            next_state(state, event)


@pytest.mark.parametrize("state", sorted(OVER, key=lambda state: state.value))
@pytest.mark.parametrize("event", list(StepEvent))
def test_worker_whose_work_is_over_hears_nothing(state: StepState, event: StepEvent) -> None:
    with pytest.raises(IllegalTransition):
        next_state(state, event)


# --- silence ------------------------------------------------------------------------------------

WORKER = WorkerId(3)
GAPS = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=30)


def look_all(
    limits: SilenceLimits, gaps_s: list[float], counters: list[int], phase: int = 0
) -> list[FailureDetector]:
    """Return the detector after each look; the first is at 0 s."""
    now, seen = 0.0, [FailureDetector(limits)]
    for gap_s, counter in zip([0.0, *gaps_s], counters, strict=False):
        now += gap_s
        seen.append(seen[-1].observe({WORKER: HeartbeatView(counter, phase)}, now))
    return seen[1:]


@given(GAPS)
def test_silence_only_grows_and_verdicts_only_get_worse(gaps_s: list[float]) -> None:
    looks = look_all(SilenceLimits(1.0), gaps_s, [7] * 40)

    findings = [look.finding(WORKER) for look in looks]
    silences = [finding.silent_s for finding in findings]
    assert silences == sorted(silences)
    grades = [finding.is_dead for finding in findings]
    assert grades == sorted(grades)


@given(GAPS)
def test_silence_is_never_more_than_the_time_that_passed(gaps_s: list[float]) -> None:
    last = look_all(SilenceLimits(1.0), gaps_s, [7] * 40)[-1].finding(WORKER)

    assert last.silent_s <= sum(gaps_s) + 1e-9
    assert last.silent_s <= 0.25 * len(gaps_s) + 1e-9


@given(GAPS)
def test_worker_that_counts_at_every_look_is_never_dead(gaps_s: list[float]) -> None:
    looks = look_all(SilenceLimits(0.1), gaps_s, list(range(40)))

    assert {look.finding(WORKER).is_dead for look in looks} == {False}


@given(GAPS, st.floats(1.0, 50.0))
def test_longer_limit_never_finds_more_dead(gaps_s: list[float], longer_s: float) -> None:
    """The phase alone is given longer, so that looks count alike."""
    patient = SilenceLimits(1.0, {5: longer_s})
    verdicts = [
        look_all(limits, gaps_s, [7] * 40, phase=5)[-1].finding(WORKER).is_dead
        for limits in (SilenceLimits(1.0), patient)
    ]

    assert verdicts[1] <= verdicts[0]


@given(GAPS)
def test_verdict_follows_from_silence_and_limit(gaps_s: list[float]) -> None:
    for look in look_all(SilenceLimits(2.0), gaps_s, [7] * 40):
        finding = look.finding(WORKER)
        assert finding.is_dead is (finding.silent_s > 2.0)


@given(GAPS, st.integers(0, 30))
def test_one_sign_of_life_begins_the_count_anew(gaps_s: list[float], moment: int) -> None:
    counters = [7] * moment + [8] * 40

    looks = look_all(SilenceLimits(1.0), gaps_s, counters)

    if moment < len(looks):
        assert looks[moment].finding(WORKER).silent_s == 0.0


@given(GAPS)
def test_workers_are_judged_apart(gaps_s: list[float]) -> None:
    alone = look_all(SilenceLimits(1.0), gaps_s, [7] * 40)[-1].finding(WORKER)
    detector, now = FailureDetector(SilenceLimits(1.0)), 0.0
    for turn, gap_s in enumerate([0.0, *gaps_s]):
        now += gap_s
        views = {WORKER: HeartbeatView(7, 0), WorkerId(4): HeartbeatView(turn, 0)}
        detector = detector.observe(views, now)

    findings = detector.findings()
    assert findings[WORKER] == alone
    assert not findings[WorkerId(4)].is_dead


def test_worker_that_nobody_watches_has_no_verdict() -> None:
    with pytest.raises(KeyError):
        FailureDetector(SilenceLimits(1.0)).finding(WORKER)
