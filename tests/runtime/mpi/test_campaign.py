from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from mpi_programs import FAILING, PASSING, SPEAKING, library_of, starts_of

from holdfast.runtime.host.launchers import MPICH, OPEN_MPI
from holdfast.runtime.mpi import campaign
from holdfast.runtime.mpi.campaign import ENOUGH_FAILURES, Finding, run_campaign, run_trial
from holdfast.runtime.mpi.mpi_library import find_mpiexec, identify
from holdfast.runtime.mpi.trial_table import (
    CAMPAIGN,
    FIRST_DEATH,
    PLAIN_START,
    START,
    Level,
    Outcome,
    Trial,
)
from holdfast.runtime.system.processes import wait_all_ended

BOUND_S = 90.0

LATER = tuple(Trial(f"later {number}", Level.SEVERAL, 2) for number in range(5))


def test_refusal_of_mpiexec_is_quoted(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, "echo '-----'; echo 'unknown option --with-ft' >&2; exit 213")

    outcome = run_trial(library, environment, FIRST_DEATH).outcome

    assert outcome.failure == "mpiexec ended with code 213 (unknown option --with-ft)"


def test_reason_of_a_rank_is_passed_on(tmp_path: Path, environment: dict[str, str]) -> None:
    outcome = run_trial(library_of(tmp_path, FAILING), environment, FIRST_DEATH).outcome

    assert outcome.failure == "no Revoke"


def test_files_of_the_library_come_with_the_outcome(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    finding = run_trial(library_of(tmp_path, PASSING), environment, FIRST_DEATH)

    assert finding.outcome.has_passed
    assert finding.files == (environment["LIBRARY"],)


@pytest.mark.process
def test_hanging_trial_is_ended_with_everything_it_started(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    pids = tmp_path / "pids"
    library = library_of(
        tmp_path, f"sleep 600 & echo $! > {pids}; trap '' TERM; echo $$ >> {pids}; wait; wait"
    )

    outcome = run_trial(library, environment, FIRST_DEATH, timeout_s=5.0).outcome

    assert outcome.failure == "2 ranks did not end within 5 s"
    assert wait_all_ended(map(int, pids.read_text().split()), BOUND_S) == ()


def test_trial_leaves_no_directory(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(campaign.tempfile, "tempdir", str(scratch))

    run_trial(library_of(tmp_path, PASSING), environment, FIRST_DEATH)

    assert list(scratch.iterdir()) == []


def test_level_that_failed_makes_the_next_ones_pointless(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    found = run_campaign(library_of(tmp_path, FAILING), environment, (START, *LATER))

    assert [finding.outcome.trial for finding in found] == [START]


def test_level_that_fails_again_and_again_is_given_up(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    found = run_campaign(library_of(tmp_path, FAILING), environment, LATER)

    assert len(found) == ENOUGH_FAILURES
    assert starts_of(environment) == ENOUGH_FAILURES


def test_trial_that_hangs_has_a_second_chance(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Trial] = []

    def hang_first(library: object, environment: object, trial: Trial) -> Finding:
        tries.append(trial)
        is_first = tries.count(trial) == 1
        return Finding(Outcome(trial, "hung" if is_first else ""), has_hung=is_first)

    monkeypatch.setattr(campaign, "run_trial", hang_first)

    found = run_campaign(library_of(tmp_path, PASSING), environment, LATER[:2])

    assert [finding.outcome.has_passed for finding in found] == [True, True]
    assert len(tries) == 4


def test_launcher_without_fault_tolerance_only_has_to_start(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    library = library_of(tmp_path, PASSING, "5.0.2", MPICH)

    found = run_campaign(library, environment, CAMPAIGN)

    assert [finding.outcome.trial for finding in found] == [PLAIN_START]


def test_findings_are_told_as_they_come(tmp_path: Path, environment: dict[str, str]) -> None:
    told: list[tuple[str, int]] = []

    run_campaign(
        library_of(tmp_path, SPEAKING),
        environment,
        LATER[:2],
        lambda finding: told.append((finding.outcome.trial.name, starts_of(environment))),
    )

    assert told == [("later 0", 1), ("later 1", 2)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    "trial",
    [
        PLAIN_START,
        FIRST_DEATH,
        *(trial for trial in CAMPAIGN if trial.revokes or "stop" in trial.name),
    ],
    ids=lambda trial: trial.name,
)
def test_installed_mpi_passes(trial: Trial) -> None:
    (finding,) = run_campaign(identify(find_mpiexec()), os.environ, [trial])

    assert finding.outcome.has_passed, finding.outcome
    assert any("libmpi" in name for name in finding.files)


@pytest.mark.mpi
def test_installed_mpi_without_fault_tolerance_does_not_pass() -> None:
    """The trial tells apart: the same library fails it when ULFM is left out."""
    library = identify(find_mpiexec())
    without = dataclasses.replace(OPEN_MPI, ulfm_options=())

    finding = run_trial(dataclasses.replace(library, launcher=without), os.environ, FIRST_DEATH)

    assert not finding.outcome.has_passed


@pytest.mark.mpi
def test_mpiexec_of_another_library_is_found_out(tmp_path: Path) -> None:
    """Each rank then is a world of its own, as under the mpiexec of another MPI."""
    segments = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    script = 'while [ "$1" != -n ]; do shift; done; shift 2; "$@" & "$@"; wait'

    finding = run_trial(library_of(tmp_path, script), os.environ | segments, PLAIN_START)

    assert "which is not the MPI of this mpiexec" in finding.outcome.failure
