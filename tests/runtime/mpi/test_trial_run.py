"""How one trial is started and read, and which trials a campaign still makes after a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mpi_programs import FAILING, PASSING, library_of, starts_of

from holdfast.runtime.mpi import campaign
from holdfast.runtime.mpi.campaign import (
    ENOUGH_FAILURES,
    Finding,
    _first_words,
    _read_reports,
    run_campaign,
    run_trial,
)
from holdfast.runtime.mpi.mpi_library import MpiLibrary
from holdfast.runtime.mpi.trial_table import (
    FIRST_DEATH,
    PLAIN_START,
    Death,
    Level,
    Outcome,
    RankReport,
    Trial,
    Where,
)

SPAWNING = Trial("a new rank", Level.SPAWN, 2, (Death(1, Where.VOTE),), spawns=1)
SEVERAL = tuple(Trial(f"trial {number}", Level.SEVERAL, 2) for number in range(5))
SHOW = 'echo "$@" > "$COUNT"; echo "MPI4PY_LIBMPI=$MPI4PY_LIBMPI" >> "$COUNT"'


def _started(library: MpiLibrary, environment: dict[str, str], trial: Trial) -> tuple[str, str]:
    """Run a trial with an mpiexec that shows its arguments; return them and the library's file."""
    run_trial(library, environment, trial)
    arguments, chosen = Path(environment["COUNT"]).read_text().splitlines()
    return arguments, chosen.removeprefix("MPI4PY_LIBMPI=")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", ""),
        (" \n-----\n***\n", ""),
        ("-----\n  ** No slots. **\nmore\n", " (No slots.)"),
        ("x" * 300, f" ({'x' * 200})"),
    ],
    ids=["nothing", "rules", "banner", "long"],
)
def test_first_line_with_words_is_quoted(output: str, words: str) -> None:
    assert _first_words(output) == words


def test_reports_are_read_by_rank_and_drafts_are_not(tmp_path: Path) -> None:
    well = {"world": [0, 2], "steps": 6, "files": ["/opt/libmpi.so"], "library": "Open MPI"}
    bad = {"world": [], "steps": 2, "wrong": "a sum", "failure": "no Shrink"}
    (tmp_path / "rank-2.json").write_text(json.dumps(well))
    (tmp_path / "rank-10.json").write_text(json.dumps(bad))
    (tmp_path / "rank--77.json").write_text(json.dumps({"world": [], "steps": 0}))
    (tmp_path / "draft-78").write_text('{"world": [')
    (tmp_path / "mpiexec.log").write_text("words")

    reports, files = _read_reports(tmp_path)

    assert reports == {
        2: RankReport((0, 2), 6),
        10: RankReport((), 2, "a sum", "no Shrink"),
        -77: RankReport((), 0),
    }
    assert files == ("/opt/libmpi.so",)


@pytest.mark.parametrize(
    ("trial", "is_asked"),
    [(PLAIN_START, False), (FIRST_DEATH, True)],
    ids=lambda value: value.name if isinstance(value, Trial) else "",
)
def test_fault_tolerance_is_asked_for_only_where_the_trial_needs_it(
    tmp_path: Path, environment: dict[str, str], trial: Trial, *, is_asked: bool
) -> None:
    arguments, _ = _started(library_of(tmp_path, SHOW), environment, trial)

    assert ("--with-ft ulfm" in arguments) is is_asked
    assert f" -n {trial.ranks} " in arguments
    assert arguments.endswith(trial.encode())


@pytest.mark.parametrize(
    ("trial", "transports"), [(FIRST_DEATH, "self,sm"), (SPAWNING, "self,sm,tcp")]
)
def test_new_ranks_are_reached_over_the_network_and_all_others_by_memory(
    tmp_path: Path, environment: dict[str, str], trial: Trial, transports: str
) -> None:
    arguments, _ = _started(library_of(tmp_path, SHOW), environment, trial)

    assert f"--mca btl {transports} " in arguments


def test_ranks_load_the_library_of_the_mpiexec_that_is_tried(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()

    _, chosen = _started(library_of(tmp_path / "bin", SHOW), environment, FIRST_DEATH)

    assert chosen == str(tmp_path / "lib" / "libmpi.so.40")


def test_trial_that_hangs_after_another_failure_of_its_level_has_no_second_chance(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hang takes the whole timeout."""
    tries: list[str] = []

    def fail(_library: object, _environment: object, trial: Trial) -> Finding:
        tries.append(trial.name)
        return Finding(Outcome(trial, "it failed"), has_hung=trial is SEVERAL[1])

    monkeypatch.setattr(campaign, "run_trial", fail)

    found = run_campaign(library_of(tmp_path, PASSING), environment, SEVERAL)

    assert tries == ["trial 0", "trial 1", "trial 2"]
    assert len(found) == ENOUGH_FAILURES


def test_mpi_that_starts_no_new_ranks_is_tried_further(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """No job needs new ranks."""
    found = run_campaign(library_of(tmp_path, FAILING), environment, (SPAWNING, FIRST_DEATH))

    assert [finding.outcome.has_passed for finding in found] == [False, False]
    assert starts_of(environment) == 2
