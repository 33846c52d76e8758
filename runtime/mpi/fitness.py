"""Whether an MPI is fit for a job: by its kept verdict, or by a short trial.

A job may rely on an MPI only as far as it has passed.  Before the first run with an MPI one
of two ranks is killed, and the other must go on; that takes half a second.  Without shrinking
two ranks must start.  A bad answer is not kept: the machine may have been busy, and a broken
installation may be fixed later.

A verdict lies in ``${XDG_CACHE_HOME:-~/.cache}/holdfast``.  Its name stands for everything that
decides which library is loaded, and how: mpiexec, Python, mpi4py, options and variables.  So each
network between hosts, and each set of the user's own settings, has a verdict of its own.
Inside are the digests of mpiexec and of the library's files, as the ranks had them loaded.
When one of these files has changed, the verdict counts no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import ON_ONE_HOST, LaunchTerms
from holdfast.runtime.mpi.mpi_library import INSTALL_HINT, MpiLibrary
from holdfast.runtime.mpi.trial import FIRST_DEATH, PLAIN_START, Trust
from holdfast.runtime.run.files import write_whole

_CHOICES = ("MPI4PY_", "LD_LIBRARY_PATH", "LD_PRELOAD", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
"""Beginnings of variables that choose a library, or its behaviour."""

_SHORT_TRIALS = {Trust.RELAUNCH: PLAIN_START, Trust.ONE: FIRST_DEATH}


def require(
    library: MpiLibrary,
    environment: Mapping[str, str],
    needed: Trust,
    terms: LaunchTerms = ON_ONE_HOST,
) -> None:
    """Refuse an MPI that a job cannot rely on: by what is kept, or by a short trial.

    Raises:
        UsageError: the message gives the reason and the remedies.
    """
    if kept_trust(library, environment, terms) >= needed:
        return
    fault = _fault(library, environment, needed, terms)
    if not fault:
        return
    starts = needed is Trust.ONE  # a fault there is one of survivors
    cannot = "continue after a worker's death (ULFM)" if starts else "start workers"
    relaunched = "run with --no-shrink, which relaunches the job at every death"
    if terms.mca:
        cannot += f" with {terms}"
        remedy = f"leave --mca out, or {relaunched}" if starts else "correct --mca, or leave it out"
    else:
        remedy = f"{INSTALL_HINT}, or {relaunched if starts else 'name another with --mpiexec'}"
    raise UsageError(f"{library} cannot {cannot}: {fault}; {remedy}")


def _fault(
    library: MpiLibrary, environment: Mapping[str, str], needed: Trust, terms: LaunchTerms
) -> str:
    """Return what a short trial finds against an MPI; "" for nothing, and that is kept."""
    if needed is Trust.ONE and not library.launcher.can_shrink:
        return f"{library.name} ends all workers with the first that dies"
    from holdfast.runtime.mpi.trial_run import run_trial  # most jobs find what is kept

    outcome = run_trial(library, environment, _SHORT_TRIALS[needed], terms)
    if outcome.has_passed:
        keep_trust(library, environment, needed, outcome.files, terms)
    return outcome.fault


def kept_trust(
    library: MpiLibrary, environment: Mapping[str, str], terms: LaunchTerms = ON_ONE_HOST
) -> Trust:
    """Return what was found out before: nothing, too, if the library has changed since."""
    try:
        kept = json.loads(_path(library, environment, terms).read_text(encoding="utf-8"))
        if any(_digest(Path(name)) != digest for name, digest in kept["files"].items()):
            return Trust.NOTHING
        return Trust[kept["trust"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Trust.NOTHING


def keep_trust(
    library: MpiLibrary,
    environment: Mapping[str, str],
    trust: Trust,
    files: Iterable[str],
    terms: LaunchTerms = ON_ONE_HOST,
) -> Path | None:
    """Keep what was found out; return the file, None if the cache cannot be written.

    Without a cache the next run costs a trial, and no more.
    """
    path = _path(library, environment, terms)
    with contextlib.suppress(OSError):
        names = sorted({str(library.mpiexec.resolve()), *files})
        text = json.dumps(
            {
                "library": str(library),
                "trust": trust.name,
                "files": {name: _digest(Path(name)) for name in names},
            },
            indent=1,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{text}\n".encode())
        return path
    return None


def _path(library: MpiLibrary, environment: Mapping[str, str], terms: LaunchTerms) -> Path:
    home = environment.get("XDG_CACHE_HOME")
    if not home:
        try:
            home = str(Path.home() / ".cache")
        except RuntimeError:  # a user without a home keeps nothing
            home = os.devnull
    chosen = dict(environment) | library.variables(environment)
    parts = (
        str(library.mpiexec.resolve()),
        library.name,
        library.version,
        sys.executable,
        sys.version,
        metadata.version("mpi4py"),
        library.launcher.options,
        terms.parameters(library.launcher),
        library.launcher.ulfm_options,
        sorted((name, value) for name, value in chosen.items() if name.startswith(_CHOICES)),
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return Path(home) / "holdfast" / f"mpi-{key}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
