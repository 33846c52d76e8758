"""A trial that is run: by programs that stand in for an mpiexec, and by real ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from mpi_programs import PASSING, library_of

from holdfast.runtime.host.launchers import OPEN_MPI
from holdfast.runtime.mpi import trial_run
from holdfast.runtime.mpi.mpi_library import MpiLibrary, find_mpiexec, identify
from holdfast.runtime.mpi.trial import FIRST_DEATH, PLAIN_START, RankReport, Trial
from holdfast.runtime.mpi.trial_run import _first_words, _read_reports, run_trial
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.processes import wait_all_ended

BOUND_S = 90.0
SHOW = 'echo "$@" > "$COUNT"; echo "MPI4PY_LIBMPI=$MPI4PY_LIBMPI" >> "$COUNT"'


def test_refusal_of_mpiexec_is_quoted(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, "echo '-----'; echo 'unknown option --with-ft' >&2; exit 213")

    outcome = run_trial(library, environment, FIRST_DEATH)

    assert outcome.failure == "mpiexec ended with code 213 (unknown option --with-ft)"


def test_files_of_the_library_come_with_the_outcome(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    outcome = run_trial(library_of(tmp_path, PASSING), environment, FIRST_DEATH)

    assert outcome.has_passed
    assert outcome.files == (environment["LIBRARY"],)


@pytest.mark.process
def test_hanging_trial_is_ended_with_everything_it_started(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    pids = tmp_path / "pids"
    library = library_of(
        tmp_path, f"sleep 600 & echo $! > {pids}; trap '' TERM; echo $$ >> {pids}; wait; wait"
    )

    outcome = run_trial(library, environment, FIRST_DEATH, timeout_s=5.0)

    assert outcome.failure == "2 ranks did not end within 5 s"
    assert wait_all_ended(map(int, pids.read_text().split()), BOUND_S) == ()


def test_trial_leaves_no_directory(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(trial_run.tempfile, "tempdir", str(scratch))

    run_trial(library_of(tmp_path, PASSING), environment, FIRST_DEATH)

    assert list(scratch.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.parametrize("trial", [PLAIN_START, FIRST_DEATH], ids=lambda trial: trial.name)
def test_installed_mpi_passes(trial: Trial) -> None:
    outcome = run_trial(identify(find_mpiexec()), os.environ, trial)

    assert outcome.has_passed, outcome
    assert any("libmpi" in name for name in outcome.files)


@pytest.mark.mpi
def test_installed_mpi_without_fault_tolerance_does_not_pass() -> None:
    """The trial tells apart: the same library fails it when ULFM is left out."""
    library = identify(find_mpiexec())
    without = dataclasses.replace(OPEN_MPI, ulfm_options=())

    outcome = run_trial(dataclasses.replace(library, launcher=without), os.environ, FIRST_DEATH)

    assert not outcome.has_passed


@pytest.mark.mpi
def test_mpiexec_of_another_library_is_found_out(tmp_path: Path) -> None:
    """Each rank then is a world of its own, as under the mpiexec of another MPI."""
    segments = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    script = 'while [ "$1" != -n ]; do shift; done; shift 2; "$@" & "$@"; wait'

    outcome = run_trial(library_of(tmp_path, script), os.environ | segments, PLAIN_START)

    assert "which is not the MPI of this mpiexec" in outcome.failure


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
    reports = {
        2: RankReport((0, 2), 6, files=("/opt/libmpi.so",)),
        10: RankReport((), 2, "a sum", "no Shrink"),
        -77: RankReport(),
    }
    for rank, report in reports.items():
        (tmp_path / f"rank-{rank}.json").write_bytes(encode(report))
    (tmp_path / "draft-78").write_text('{"world": [')
    (tmp_path / "mpiexec.log").write_text("words")

    assert _read_reports(tmp_path) == reports


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
    assert arguments.endswith(encode(trial).decode())


def test_ranks_load_the_library_of_the_mpiexec_that_is_tried(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()

    _, chosen = _started(library_of(tmp_path / "bin", SHOW), environment, FIRST_DEATH)

    assert chosen == str(tmp_path / "lib" / "libmpi.so.40")
