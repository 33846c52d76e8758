"""mpiexec's command line and environment for one launch on one host.

`launchers` tells what each MPI library's mpiexec needs, and why.  For all of them ``TMPDIR``
is the launch's private directory, which its owner removes.  Guards keep ``TMPDIR`` to
themselves: MPI finds all without it in a worker, whose script would else put its temporary
files into memory.
The variables of a batch job are left out, see ``environment``.

mpiexec's exit code means nothing under ``--with-ft ulfm``: it is 0 even when
all ranks were killed.  The workers tell the outcome of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.mpiexec.launchers import OPEN_MPI, Launcher
from holdfast.runtime.system.own_process import home_for_mpi

_ENCLOSING_JOB = ("PMIX_", "OMPI_", "PRTE_", "PMI_", "PMI2_", "HYDI_", "HYDRA_BSTRAP_", "MPI_LOCAL")
_BATCH_JOB = ("SLURM_", "PBS_", "LSB_", "LSF_", "SGE_")
_BATCH_JOB_OF_SGE = ("JOB_ID", "PE_HOSTFILE")
"""What tells PRRTE (its frameworks ras and plm) of an allocation."""

_SETTINGS = ("PMIX_MCA_", "OMPI_MCA_", "PRTE_MCA_")

_PLACEMENT = (
    *("PRTE_MCA_rmaps", "PRTE_MCA_ras", "PRTE_MCA_plm", "PRTE_MCA_ess", "PRTE_MCA_hwloc"),
    *("PRTE_MCA_prte_default_", "PRTE_MCA_prte_set_default_slots"),
    *("OMPI_MCA_rmaps", "OMPI_MCA_ras", "OMPI_MCA_plm", "OMPI_MCA_orte_", "OMPI_MCA_hwloc_base"),
)
"""A site's settings of where ranks go.  Those of holdfast are all here, and bound to nothing."""


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One start of mpiexec: ``ranks`` times the guard, all on this host.

    ``directory`` exists and is private to the launch (mode 0700).  Its maker removes it
    when mpiexec has ended.  ``ulfm`` false starts a job that dies whole with its first
    rank.  ``as_root`` permits mpiexec to run as root.  ``launcher`` is the kind of mpiexec.
    """

    mpiexec: Path
    ranks: int
    directory: Path
    guard: tuple[str, ...]
    ulfm: bool = True
    as_root: bool = False
    launcher: Launcher = OPEN_MPI

    def __post_init__(self) -> None:
        """Refuse launches that mpiexec would misread."""
        if self.ulfm and not self.launcher.can_shrink:
            raise ValueError(f"no worker outlives a death under {self.launcher.library}")
        if self.ranks < 1:
            raise ValueError(f"a launch needs at least 1 rank, got {self.ranks}")
        if not self.guard:
            raise ValueError("a launch needs the guard's command, got an empty one")

    def command(self) -> tuple[str, ...]:
        """Return the whole command line, mpiexec first."""
        kind = self.launcher
        return (
            str(self.mpiexec),
            *(kind.root_options if self.as_root else ()),
            *(kind.ulfm_options if self.ulfm and kind.ulfm_options else ()),
            *kind.options,
            *((*kind.directory_options, str(self.directory)) if kind.directory_options else ()),
            *("-n", str(self.ranks)),
            *self.guard,
        )

    def environment(self, base: Mapping[str, str], **extra: str) -> dict[str, str]:
        """Return ``base`` made fit for mpiexec, with ``extra`` variables for the guards.

        The variables of an enclosing MPI job are left out: with them mpiexec would take
        itself for a rank of that job.  The site's settings (``OMPI_MCA_*`` and the like)
        stay, but for those that place ranks on hosts and cores.  So are those of a batch job:
        mpiexec would spread the ranks over all of its hosts, and start daemons there by srun and
        the like.  Workers keep them.
        """
        here = outside_of_batch(outside_of_mpi({**base, **home_for_mpi(base, str(self.directory))}))
        here = {name: value for name, value in here.items() if not name.startswith(_PLACEMENT)}
        return {**dict(self.launcher.environment), **here, "TMPDIR": str(self.directory), **extra}


def outside_of_batch(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without the variables of a batch job that encloses this process."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_BATCH_JOB) and name not in _BATCH_JOB_OF_SGE
    }


def outside_of_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without the variables of an MPI job that encloses this process.

    The site's settings for MPI (``OMPI_MCA_*`` and the like) stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_ENCLOSING_JOB) or name.startswith(_SETTINGS)
    }
