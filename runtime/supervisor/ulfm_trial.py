"""The trial whether an MPI can recover in place, and the memory of its outcome.

Version numbers do not tell: ULFM may be compiled out, switched off by a site, or belong to
another library than the one that mpi4py loads.  So two ranks are started, one is killed,
and the other must go on (`ulfm_probe`).  The trial takes half a second, once per MPI: a
good answer is kept in ``${XDG_CACHE_HOME:-~/.cache}/holdfast``.  A bad answer is not kept,
because the machine may have been busy, and a broken installation may be fixed later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.mpiexec.launch_line import PARAMETERS, LaunchLine
from holdfast.runtime.supervisor.mpi_library import INSTALL_HINT, MpiLibrary
from holdfast.runtime.system.helper_process import module_command

TRIAL_TIMEOUT_S = 60.0
"""A hundred times what it takes: a busy machine must not be told that its MPI is unfit."""
_TERMINATE_TIMEOUT_S = 3.0
"""mpiexec needs 0.3 s to end its ranks after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Fitness:
    """Whether ``library`` recovers in place; ``reason`` is the fault, or the source of a yes."""

    ulfm: bool
    library: str
    reason: str


def require_ulfm(fitness: Fitness) -> None:
    """Refuse an MPI that cannot recover in place.

    Raises:
        UsageError: the trial failed; the message gives the reason and the remedies.
    """
    if not fitness.ulfm:
        raise UsageError(
            f"{fitness.library} cannot continue after a worker's death (ULFM): {fitness.reason}; "
            f"{INSTALL_HINT}, or run with --no-shrink, which relaunches the job at every death"
        )


def assess(library: MpiLibrary, environment: Mapping[str, str]) -> Fitness:
    """Return the remembered answer for ``library``, or the outcome of a new trial."""
    remembered = _cache_path(library, environment)
    if _is_remembered(remembered):
        return Fitness(True, str(library), "passed a trial before")
    fitness = try_out(library, environment)
    if fitness.ulfm:
        _remember(remembered, library)
    return fitness


def try_out(
    library: MpiLibrary, environment: Mapping[str, str], *, timeout_s: float = TRIAL_TIMEOUT_S
) -> Fitness:
    """Kill one of two ranks and see whether the other goes on; leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        verdict = directory / "verdict.json"
        line = LaunchLine(
            mpiexec=library.mpiexec,
            ranks=2,
            directory=directory,
            guard=module_command("holdfast.runtime.supervisor.ulfm_probe", str(verdict)),
            as_root=os.geteuid() == 0,
        )
        ending = _run(line, environment, timeout_s)
        reason = _read_verdict(verdict, ending)
    return Fitness(not reason, str(library), reason or "passed a trial")


def _run(line: LaunchLine, environment: Mapping[str, str], timeout_s: float) -> str:
    """Run a launch to its end or the timeout; return its end as a sentence."""
    output_path = line.directory / "output"
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            line.command(),
            env=line.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"a trial of two ranks, one of them killed, did not end within {timeout_s:g} s"
    finally:
        _end(process)
    return f"mpiexec ended with code {code}{_first_words(output_path)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec and, through it, its ranks."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _first_words(output_path: Path) -> str:
    """Return the first line of the output that is not empty, as a part of a sentence."""
    for line in output_path.read_text(errors="replace").splitlines():
        words = line.strip(" -*=#\t")
        if words:
            return f" ({words[:200]})"
    return ""


def _read_verdict(path: Path, ending: str) -> str:
    """Return the reason why the trial failed, or an empty text if it passed."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["reason"])
    except FileNotFoundError:
        return ending


def _cache_path(library: MpiLibrary, environment: Mapping[str, str]) -> Path:
    """Name the file of this MPI's answer after everything that the answer depends on."""
    home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    program = library.mpiexec.resolve()
    parts = (
        str(program),
        program.stat().st_mtime_ns,
        library.version,
        sys.executable,
        sys.version,
        metadata.version("mpi4py"),
        PARAMETERS,
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return Path(home) / "holdfast" / f"fit-{key}.json"


def _is_remembered(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _remember(path: Path, library: MpiLibrary) -> None:
    """Keep a good answer; a home directory that cannot be written only costs the next trial."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"library": str(library)}) + "\n", encoding="utf-8")
