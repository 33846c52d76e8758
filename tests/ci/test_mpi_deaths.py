"""The campaign of deaths of an MPI: its trials, what it leaves out, and what it trusts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi_programs import FAILING, PASSING, library_of, starts_of

from holdfast.runtime.host.launchers import MPICH, find_mpiexec, identify
from holdfast.runtime.host.mpi_trial import PLAIN_START, Trial, TrialOutcome

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
import mpi_deaths
from mpi_deaths import CAMPAIGN, ENOUGH_FAILURES, Judged, Level, run_campaign, trust_of

LATER = tuple((Level.SEVERAL, Trial(f"later {number}", 2)) for number in range(5))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What an mpiexec of `mpi_programs` is started in; it counts its starts, and has a library."""
    library = tmp_path / "libmpi.so.40"
    library.write_text("a library")
    return {
        "PATH": os.environ["PATH"],
        "COUNT": str(tmp_path / "count"),
        "LIBRARY": str(library),
    }


def test_level_that_fails_again_and_again_is_given_up(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    found = run_campaign(library_of(tmp_path, FAILING), environment, LATER)

    assert len(found) == ENOUGH_FAILURES
    assert starts_of(environment) == ENOUGH_FAILURES


def test_only_the_first_failure_of_a_level_has_a_second_chance_and_only_if_it_hung(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hang takes the whole timeout."""
    tries: list[str] = []

    def hang(_library: object, _environment: object, trial: Trial) -> TrialOutcome:
        tries.append(trial.name)
        is_well = trial.name == "later 0" and len(tries) > 1
        return TrialOutcome(trial, "" if is_well else "it failed", has_hung=not is_well)

    monkeypatch.setattr(mpi_deaths, "run_trial", hang)

    found = run_campaign(library_of(tmp_path, PASSING), environment, LATER)

    assert tries == ["later 0", "later 0", "later 1", "later 1", "later 2", "later 3"]
    assert [judged.outcome.has_passed for judged in found] == [True, False, False, False]


def test_launcher_without_fault_tolerance_only_has_to_start(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    found = run_campaign(library_of(tmp_path, PASSING, "5.0.2", MPICH), environment, CAMPAIGN)

    assert [judged.outcome.trial for judged in found] == [PLAIN_START]
    assert trust_of(found) is Level.START


def _judged(level: Level, *, failure: str = "", wrong: str = "") -> Judged:
    return Judged(level, TrialOutcome(Trial(f"trial of {level.name}", 2), failure, wrong))


GOOD = {level: _judged(level) for level in Level}
LOST = {level: _judged(level, failure="a rank was lost") for level in Level}
WRONG = {level: _judged(level, wrong="a wrong sum") for level in Level}
START, ONE, SEVERAL = Level


@pytest.mark.parametrize(
    ("found", "trust"),
    [
        ([], None),
        ([LOST[START]], None),
        ([WRONG[START]], None),
        ([GOOD[START]], START),
        ([GOOD[START], LOST[ONE]], START),
        ([GOOD[START], GOOD[ONE]], ONE),
        ([GOOD[START], GOOD[ONE], LOST[SEVERAL]], ONE),
        ([*GOOD.values()], SEVERAL),
        ([GOOD[START], GOOD[ONE], GOOD[ONE], LOST[ONE]], START),
        ([GOOD[START], GOOD[SEVERAL]], START),
        ([GOOD[START], GOOD[ONE], WRONG[SEVERAL]], START),
    ],
)
def test_trust_goes_as_far_as_all_trials_have_passed(
    found: list[Judged], trust: Level | None
) -> None:
    assert trust_of(found) is trust


FOUND = st.lists(st.sampled_from([*GOOD.values(), *LOST.values(), *WRONG.values()]))


@given(FOUND, FOUND)
def test_another_bad_outcome_never_gains_trust(before: list[Judged], after: list[Judged]) -> None:
    trust = trust_of([*before, *after]) or 0

    for bad in (*LOST.values(), *WRONG.values()):
        assert (trust_of([*before, bad, *after]) or 0) <= trust


@pytest.mark.mpi
def test_installed_mpi_survives_many_revokes() -> None:
    steps = [step for step in CAMPAIGN if step[1].revokes]

    found = [run_campaign(identify(find_mpiexec()), os.environ, [step])[0] for step in steps]

    assert len(found) == 2
    assert all(judged.outcome.has_passed for judged in found), found
