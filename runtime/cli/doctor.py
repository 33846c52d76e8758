"""``holdfast doctor``: whether a job could run here, and what to do if not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.supervisor.mpi_library import MpiLibrary, find_mpiexec, identify
from holdfast.runtime.supervisor.ulfm_trial import require_ulfm, try_out
from holdfast.runtime.system.helper_process import program_command
from holdfast.runtime.system.processes import usable_cores

IMPORT_TIMEOUT_S = 120.0
"""TensorFlow takes three seconds from a warm disk, and much longer from a cold network one."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: a sentence, and whether a job could run with it."""

    subject: str
    sentence: str
    is_good: bool = True


@click.command(context_settings={"auto_envvar_prefix": "HOLDFAST"})
@click.option("--run-dir", type=click.Path(path_type=Path), default=Path("."), show_default=True)
@click.option("--mpiexec", type=click.Path(path_type=Path), help="The mpiexec to examine.")
def doctor(run_dir: Path, mpiexec: Path | None) -> None:
    """Examine MPI, TensorFlow and the run directory; exit 2 if a job could not run."""
    is_healthy = True
    for finding in _examine(run_dir, mpiexec):
        mark = "ok  " if finding.is_good else "FAIL"
        click.echo(f"{mark}  {finding.subject:<13} {finding.sentence}")
        is_healthy = is_healthy and finding.is_good
    sys.exit(ExitCode.DONE if is_healthy else ExitCode.USAGE)


def _examine(run_dir: Path, mpiexec: Path | None) -> Iterator[Diagnosis]:
    """Yield findings as they come; checks that depend on a failed one are left out."""
    yield Diagnosis("Python", f"{sys.version.split()[0]} ({sys.executable})")
    yield Diagnosis("cores", f"{usable_cores()} usable")
    library: MpiLibrary | None = None
    try:
        library = identify(find_mpiexec(mpiexec))
    except JobError as error:
        yield Diagnosis("MPI", str(error), is_good=False)
    if library is not None:
        yield Diagnosis("MPI", str(library))
        yield _attempt("ULFM", lambda: _try_out(library))
        if library.warning:
            yield Diagnosis("MPI version", library.warning, is_good=False)
    yield _find_tensorflow()
    yield _attempt("run directory", lambda: _check_writable(run_dir))


def _attempt(subject: str, check: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(subject, check())
    except JobError as error:
        return Diagnosis(subject, str(error), is_good=False)


def _try_out(library: MpiLibrary) -> str:
    require_ulfm(try_out(library, os.environ))
    return "one of two ranks was killed and the other went on"


def _find_tensorflow() -> Diagnosis:
    """Import TensorFlow in another process: it may be slow, or crash its process."""
    program = "import tensorflow; print(tensorflow.__version__)"
    try:
        answer = subprocess.run(
            program_command(program),
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _no_tensorflow(f"importing it takes more than {IMPORT_TIMEOUT_S:g} s")
    if answer.returncode == 0:
        return Diagnosis("TensorFlow", answer.stdout.strip())
    complaint = answer.stderr.strip().rpartition("\n")[2]
    return _no_tensorflow(complaint or f"its import ended with {answer.returncode}")


def _no_tensorflow(reason: str) -> Diagnosis:
    hint = "pip install 'holdfast[cpu]' (scripts with a replica of their own do without)"
    return Diagnosis("TensorFlow", f"cannot be imported: {reason}; {hint}", is_good=False)


def _check_writable(run_dir: Path) -> str:
    directory = RunDirectory(run_dir.absolute())
    directory.prepare()
    return f"{directory.path} is writable"
