from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from mpi_programs import PASSING, library_of

from holdfast.runtime.mpi.fitness import Verdict, find_verdict, keep_verdict
from holdfast.runtime.mpi.trial_table import Trust

VERDICT = Verdict(Trust.ONE, 'a "fault"', is_campaign=True)


def test_verdict_is_kept(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, PASSING)

    assert find_verdict(library, environment) is None
    keep_verdict(library, environment, VERDICT, [environment["LIBRARY"]])

    assert find_verdict(library, environment) == VERDICT


def test_later_verdict_replaces_an_earlier_one(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, PASSING)
    keep_verdict(library, environment, VERDICT, [])

    keep_verdict(library, environment, Verdict(Trust.ALL), [])

    assert find_verdict(library, environment) == Verdict(Trust.ALL)
    assert len(list((tmp_path / "cache" / "holdfast").iterdir())) == 1


@pytest.mark.parametrize("changed", ["mpiexec", "libmpi.so.40"])
def test_changed_file_of_the_build_ends_the_verdict(
    tmp_path: Path, environment: dict[str, str], changed: str
) -> None:
    library = library_of(tmp_path, PASSING)
    keep_verdict(library, environment, VERDICT, [environment["LIBRARY"]])

    with (tmp_path / changed).open("a") as file:
        file.write("# another build\n")

    assert find_verdict(library, environment) is None


def test_library_that_is_gone_ends_the_verdict(tmp_path: Path, environment: dict[str, str]) -> None:
    library = library_of(tmp_path, PASSING)
    keep_verdict(library, environment, VERDICT, [environment["LIBRARY"]])

    Path(environment["LIBRARY"]).unlink()

    assert find_verdict(library, environment) is None


@pytest.mark.parametrize(
    "choice",
    [
        {"MPI4PY_LIBMPI": "/opt/other/libmpi.so"},
        {"LD_LIBRARY_PATH": "/opt/other"},
        {"OMPI_MCA_mpi_ft_enable": "0"},
    ],
)
def test_another_choice_of_library_has_a_verdict_of_its_own(
    tmp_path: Path, environment: dict[str, str], choice: dict[str, str]
) -> None:
    library = library_of(tmp_path, PASSING)

    keep_verdict(library, environment, VERDICT, [])

    assert find_verdict(library, environment | choice) is None
    assert find_verdict(library, environment | {"LANG": "C"}) == VERDICT


def test_other_version_has_a_verdict_of_its_own(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    keep_verdict(library_of(tmp_path, PASSING), environment, VERDICT, [])

    assert find_verdict(library_of(tmp_path, PASSING, "5.0.12"), environment) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trust": "BEST", "files": {}}', "\x00"])
def test_damaged_file_is_no_verdict(tmp_path: Path, environment: dict[str, str], text: str) -> None:
    library = library_of(tmp_path, PASSING)
    kept = keep_verdict(library, environment, VERDICT, [])
    assert kept is not None

    kept.write_text(text)

    assert find_verdict(library, environment) is None


def test_cache_that_cannot_be_written_costs_only_the_next_trial(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    library = library_of(tmp_path, PASSING)

    assert keep_verdict(library, environment, VERDICT, []) is None
    assert find_verdict(library, environment) is None


@pytest.mark.parametrize(
    "change", [{"options": ("--mca", "btl", "tcp")}, {"ulfm_options": ()}], ids=["all", "ulfm"]
)
def test_other_options_of_the_launcher_have_a_verdict_of_their_own(
    tmp_path: Path, environment: dict[str, str], change: dict[str, tuple[str, ...]]
) -> None:
    """A newer holdfast may start ranks in another way."""
    library = library_of(tmp_path, PASSING)
    keep_verdict(library, environment, VERDICT, [])

    launcher = dataclasses.replace(library.launcher, **change)

    assert find_verdict(dataclasses.replace(library, launcher=launcher), environment) is None


def test_verdict_lies_in_the_home_directory_without_a_cache_of_its_own(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    kept = keep_verdict(
        library_of(tmp_path, PASSING), environment | {"XDG_CACHE_HOME": ""}, VERDICT, []
    )

    assert kept is not None
    assert kept.parent == tmp_path / "home" / ".cache" / "holdfast"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_library_that_cannot_be_read_is_not_judged_for_later_runs(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    library = library_of(tmp_path, PASSING)

    assert keep_verdict(library, environment, VERDICT, [str(tmp_path / "gone.so")]) is None
    assert find_verdict(library, environment) is None
