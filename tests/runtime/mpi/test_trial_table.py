"""The trials of an MPI, and the trust that their outcomes allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.mpi.trial_table import (
    CAMPAIGN,
    Death,
    Kind,
    Level,
    Outcome,
    RankReport,
    Trial,
    Trust,
    Where,
    first_fault,
    judge,
    trust_of,
)

TRIAL = Trial("one of three", Level.ONE, 3, (Death(1, Where.VOTE),))
WELL = RankReport(world=(0, 2), steps=6)


@pytest.mark.parametrize("trial", CAMPAIGN, ids=str)
def test_trial_reaches_its_ranks_as_one_word(trial: Trial) -> None:
    assert Trial.decode(trial.encode()) == trial


@pytest.mark.parametrize("trial", CAMPAIGN, ids=str)
def test_somebody_survives_every_trial(trial: Trial) -> None:
    assert trial.survivors
    assert len({death.rank for death in trial.deaths}) == len(trial.deaths)
    assert {death.rank for death in trial.deaths} < set(range(trial.ranks))


def test_levels_come_in_the_order_of_trust() -> None:
    levels = [trial.level for trial in CAMPAIGN]

    assert levels == sorted(levels, key=list(Level).index)
    assert set(levels) == set(Level)


def test_every_kind_and_place_of_death_is_tried() -> None:
    deaths = [death for trial in CAMPAIGN for death in trial.deaths]

    assert {death.kind for death in deaths} == set(Kind)
    assert {death.where for death in deaths} == set(Where)


def test_survivors_are_those_whom_nobody_kills() -> None:
    trial = Trial("two of four", Level.SEVERAL, 4, (Death(0, Where.VOTE), Death(3, Where.VOTE)))

    assert trial.survivors == {1, 2}


def _outcome(level: Level, *, failure: str = "", wrong: str = "") -> Outcome:
    return Outcome(Trial(f"trial of {level.value}", level, 2), failure, wrong)


GOOD = {level: _outcome(level) for level in Level}
LOST = {level: _outcome(level, failure="a rank was lost") for level in Level}
WRONG = {level: _outcome(level, wrong="a wrong sum") for level in Level}


@pytest.mark.parametrize(
    ("outcomes", "trust"),
    [
        ([], Trust.NOTHING),
        ([LOST[Level.START]], Trust.NOTHING),
        ([GOOD[Level.START]], Trust.RELAUNCH),
        ([GOOD[Level.START], LOST[Level.ONE]], Trust.RELAUNCH),
        ([GOOD[Level.START], GOOD[Level.ONE]], Trust.ONE),
        ([GOOD[Level.START], GOOD[Level.ONE], LOST[Level.SEVERAL]], Trust.ONE),
        ([GOOD[Level.START], GOOD[Level.ONE], GOOD[Level.SEVERAL]], Trust.ALL),
        ([*GOOD.values()], Trust.ALL),
        ([GOOD[Level.START], GOOD[Level.ONE], GOOD[Level.ONE], LOST[Level.ONE]], Trust.RELAUNCH),
        ([GOOD[Level.START], GOOD[Level.SEVERAL]], Trust.RELAUNCH),
        ([GOOD[Level.START], GOOD[Level.ONE], WRONG[Level.SEVERAL]], Trust.RELAUNCH),
    ],
)
def test_trust_goes_as_far_as_all_trials_have_passed(outcomes: list[Outcome], trust: Trust) -> None:
    assert trust_of(outcomes) is trust


def test_new_ranks_are_not_needed_for_trust() -> None:
    outcomes = [GOOD[Level.START], GOOD[Level.ONE], GOOD[Level.SEVERAL], LOST[Level.SPAWN]]

    assert trust_of(outcomes) is Trust.ALL
    assert first_fault(outcomes) == ""


def test_wrong_result_is_named_before_a_lost_rank() -> None:
    outcomes = [GOOD[Level.START], LOST[Level.ONE], WRONG[Level.ONE]]

    assert first_fault(outcomes) == "trial of one: a wrong sum"
    assert first_fault(outcomes[:2]) == "trial of one: a rank was lost"


def test_trial_passes_when_all_survivors_went_on_together() -> None:
    assert judge(TRIAL, {0: WELL, 2: WELL}, "mpiexec ended with code 0").has_passed


@pytest.mark.parametrize(
    ("reports", "failure", "wrong"),
    [
        ({}, "3 ranks did not end within 5 s", ""),
        (
            {0: WELL},
            "rank 2 of 3 was lost, although nobody killed it; 3 ranks did not end within 5 s",
            "",
        ),
        ({0: WELL, 2: RankReport((), 2, failure="no Shrink")}, "no Shrink", ""),
        ({0: WELL, 2: RankReport((), 2, wrong="the sum 5")}, "", "the sum 5"),
        (
            {0: WELL, 2: RankReport((2,), 6)},
            "",
            "survivors went on in different worlds: [(0, 2), (2,)]",
        ),
        (
            {-77: RankReport((), 0, failure="mpi4py uses another MPI")},
            "mpi4py uses another MPI",
            "",
        ),
    ],
)
def test_trial_fails_with_the_cause(
    reports: dict[int, RankReport], failure: str, wrong: str
) -> None:
    outcome = judge(TRIAL, reports, "3 ranks did not end within 5 s")

    assert not outcome.has_passed
    if not wrong:
        assert failure in outcome.failure
    assert outcome.wrong == wrong


OUTCOMES = st.lists(st.sampled_from([*GOOD.values(), *LOST.values(), *WRONG.values()]))


@given(OUTCOMES, OUTCOMES)
def test_another_bad_outcome_never_gains_trust(before: list[Outcome], after: list[Outcome]) -> None:
    trust = trust_of([*before, *after])

    for bad in (*LOST.values(), *WRONG.values()):
        assert trust_of([*before, bad, *after]) <= trust


@given(OUTCOMES)
def test_fault_is_named_exactly_if_a_needed_trial_has_failed(outcomes: list[Outcome]) -> None:
    needed = [outcome for outcome in outcomes if outcome.trial.level is not Level.SPAWN]

    assert bool(first_fault(outcomes)) == any(not outcome.has_passed for outcome in needed)


def test_all_lost_ranks_are_named_at_once() -> None:
    trial = Trial("one of five", Level.ONE, 5, (Death(4, Where.VOTE),))

    outcome = judge(trial, {2: RankReport((2,), 6)}, "mpiexec ended with code 0", 1.5)

    assert outcome.failure == (
        "rank 0, 1, 3 of 5 was lost, although nobody killed it; mpiexec ended with code 0"
    )
    assert outcome.seconds == 1.5


def test_wrong_result_of_a_rank_that_died_later_counts() -> None:
    """Its peers have taken the same step."""
    outcome = judge(TRIAL, {0: WELL, 1: RankReport((), 2, wrong="the sum 5"), 2: WELL}, "")

    assert outcome.wrong == "the sum 5"
