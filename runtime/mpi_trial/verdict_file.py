"""The verdict on an MPI, kept for each build of its library.

It lies in ``${XDG_CACHE_HOME:-~/.cache}/holdfast``.  Its name stands for everything that
decides which library is loaded, and how: mpiexec, Python, mpi4py, options and variables.
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
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from holdfast.runtime.mpi_trial.mpi_library import MpiLibrary
from holdfast.runtime.mpi_trial.trust import Trust

_CHOICES = ("MPI4PY_", "LD_LIBRARY_PATH", "LD_PRELOAD", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
"""Beginnings of variables that choose a library, or its behaviour."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an MPI can be trusted with; ``fault`` is the gravest that was seen, or empty."""

    trust: Trust
    fault: str = ""
    is_campaign: bool = False
    """Whether all trials were made, and not only the short one before a first run."""


def find_verdict(library: MpiLibrary, environment: Mapping[str, str]) -> Verdict | None:
    """Return the kept verdict, None if there is none or the library has changed since."""
    try:
        kept = json.loads(_path(library, environment).read_text(encoding="utf-8"))
        if any(_digest(Path(name)) != digest for name, digest in kept["files"].items()):
            return None
        return Verdict(Trust[kept["trust"]], str(kept["fault"]), bool(kept["is_campaign"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep_verdict(
    library: MpiLibrary,
    environment: Mapping[str, str],
    verdict: Verdict,
    files: Iterable[str],
) -> Path | None:
    """Keep a verdict; return its file, None if the cache cannot be written.

    Without a cache the next run costs a trial, and no more.
    """
    path = _path(library, environment)
    with contextlib.suppress(OSError):
        names = sorted({str(library.mpiexec.resolve()), *files})
        text = json.dumps(
            {
                "library": str(library),
                "trust": verdict.trust.name,
                "fault": verdict.fault,
                "is_campaign": verdict.is_campaign,
                "files": {name: _digest(Path(name)) for name in names},
            },
            indent=1,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
        return path
    return None


def _path(library: MpiLibrary, environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or _cache_at_home()
    chosen = dict(environment) | library.variables(environment)
    parts = (
        str(library.mpiexec.resolve()),
        library.name,
        library.version,
        sys.executable,
        sys.version,
        metadata.version("mpi4py"),
        library.launcher.options,
        library.launcher.ulfm_options,
        sorted((name, value) for name, value in chosen.items() if name.startswith(_CHOICES)),
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return Path(home) / "holdfast" / f"mpi-{key}.json"


def _cache_at_home() -> str:
    """Return the user's cache; where a user has no home, nothing can be kept."""
    try:
        return str(Path.home() / ".cache")
    except RuntimeError:
        return os.devnull


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
