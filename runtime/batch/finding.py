"""Which batch system this process runs in, and what it has given to the job."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from holdfast.runtime.batch import lsf, pbs, sge, slurm
from holdfast.runtime.batch.allocation import Allocation, Lines, Scheduler
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.system.process_status import ancestors_names

CHAIN = "HOLDFAST_CHAIN"
"""Set by the scripts of ``holdfast sbatch --chain``: the name that all links have in common."""

_MPI_WORLDS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
)
"""Where Open MPI, MPICH and Intel MPI tell a process the size of its world, and its rank."""

_STARTERS = frozenset({
    "mpiexec", "mpirun", "mpiexec.hydra", "prterun", "prted", "orterun", "orted",
    "hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "slurmstepd", "palsd", "jsmd",
})  # fmt: skip
"""Names of processes that start the ranks of an MPI job; the kernel keeps 15 bytes of them."""

_SESSION = "PMIX_SERVER_TMPDIR"
"""A directory that lives as long as the launcher of Open MPI, which may be in another container."""

READERS = (slurm.read, pbs.read, lsf.read, sge.read)
"""Slurm first: other batch systems can be started inside one of its jobs, not around it."""


def find_allocation(environ: Mapping[str, str], lines: Lines | None = None) -> Allocation | None:
    """Return the allocation that this process runs in, None outside batch systems."""
    for read in READERS:
        found = read(environ, lines or _lines_of)
        if found is not None:
            return dataclasses.replace(_usable(found), chain=environ.get(CHAIN) or found.chain)
    return None


def options_of(allocation: Allocation | None) -> dict[str, tuple[str, Any]]:
    """Return the options of a job that its allocation settles, each with its origin."""
    if allocation is None or allocation.workers is None:
        return {}
    workers = allocation.workers
    return {"workers": (f"{workers.source} of {allocation.label}", workers.count)}


def limit_s(allocation: Allocation, environ: Mapping[str, str]) -> float | None:
    """Return the seconds that the whole job may last, where only the environment knows them."""
    return pbs.time_limit_s(environ) if allocation.scheduler is Scheduler.PBS else None


def refuse_copies(allocation: Allocation) -> None:
    """Refuse to be one of several equal commands, which would all train the same.

    The first of them says so; the others end without a word.

    Raises:
        UsageError: the step has several tasks, and this is the first.
    """
    if allocation.copies > 1 and allocation.task > 0:
        sys.exit(ExitCode.USAGE)
    if allocation.copies > 1:
        raise UsageError(
            f"srun has started this command {allocation.copies} times, and each would be a job of "
            "its own; put `holdfast run` into the batch script without srun: it starts its "
            "workers itself"
        )


def refuse_mpi_copies(
    environ: Mapping[str, str], ancestors: Callable[[], Collection[str]] = ancestors_names
) -> None:
    """Refuse to be one of several commands that mpiexec has started.

    The first of them says so; the others end without a word.  The variables of a job that is
    over, in a shell or a batch script, are none of this one's: nothing of it starts with them.

    Raises:
        UsageError: mpiexec has started several, and this is the first.
    """
    for size, rank in _MPI_WORLDS:
        copies = environ.get(size, "")
        if not copies.isdecimal() or int(copies) < 2 or rank not in environ:
            continue
        is_alive = os.path.isdir(environ.get(_SESSION, "")) or _STARTERS & set(ancestors())
        if not is_alive:
            continue
        if environ.get(rank) != "0":
            sys.exit(ExitCode.USAGE)
        raise UsageError(
            f"mpiexec has started this command {copies} times, and each would be a job of its "
            f"own; leave mpiexec out: `holdfast run -n {copies} SCRIPT` starts the workers itself"
        )


def _usable(found: Allocation) -> Allocation:
    has_workers = found.workers is not None and found.workers.count > 0
    return found if has_workers else dataclasses.replace(found, workers=None)


def _lines_of(path: str) -> tuple[str, ...]:
    try:
        return tuple(filter(None, map(str.strip, Path(path).read_text().splitlines())))
    except (OSError, ValueError):
        return ()
