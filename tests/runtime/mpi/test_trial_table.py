from __future__ import annotations

import pytest

from holdfast.runtime.mpi.trial_table import CAMPAIGN, Death, Kind, Level, Trial, Where


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
