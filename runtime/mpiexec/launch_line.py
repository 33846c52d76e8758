"""mpiexec's command line and environment for one launch on one host.

Each option answers a fact that was measured on Open MPI 5.0 with PRRTE 3.0:

* ``--with-ft ulfm`` and the two ``state_base`` parameters: a death by signal does not end
  the job, but is reported to the survivors, also among ranks that were spawned later;
* ``--bind-to none``: with one or two ranks PRRTE would bind each to one core,
  and all threads of a worker with it;
* ``pml ob1`` and ``btl self,sm``: point-to-point layers that survive failures;
  leaving out ``ofi`` also saves a second at every start.  ``tcp`` survives them too, but
  listens on all interfaces, even with ``btl_tcp_if_include``, and takes messages from
  any sender.  One host does without;
* ``coll ^han,adapt``: ``han`` has returned success with wrong sums after a
  failure;
* ``mpi_add_procs_cutoff``: every rank knows every peer from the start.  Without it a
  revoke can hang if it must reach a peer without any earlier message;
* ``btl_sm_backing_directory`` and ``TMPDIR``: everything that a killed mpiexec
  would leave behind lies in one private directory, which its owner removes.
  Guards keep ``TMPDIR`` to themselves: MPI finds all without it in a worker, whose
  script would else put its temporary files into memory;
* the variables of a batch job are left out, see ``environment``;
* ``shmem mmap``: without it each rank makes ``/dev/shm/open_mpi.0000`` for a moment,
  to see whether it could, and a rank that is killed then leaves it there.

mpiexec's exit code means nothing under ``--with-ft ulfm``: it is 0 even when
all ranks were killed.  The workers tell the outcome of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ADD_PROCS_CUTOFF = 1024

_FAULT_TOLERANCE = (
    *("--with-ft", "ulfm"),
    *("--prtemca", "state_base_recoverable", "1"),
    *("--prtemca", "state_base_notify_errors", "1"),
)
_TRANSPORT = (
    *("--mca", "pml", "ob1"),
    *("--mca", "btl", "self,sm"),
    *("--mca", "coll", "^han,adapt"),
    *("--mca", "mpi_add_procs_cutoff", str(ADD_PROCS_CUTOFF)),
    *("--mca", "shmem", "mmap"),
)
PARAMETERS = (*_FAULT_TOLERANCE, *_TRANSPORT)
"""What a trial of an MPI was made with; its answer holds for nothing else."""

_ENCLOSING_JOB = ("PMIX_", "OMPI_", "PRTE_")
_BATCH_JOB = ("SLURM_", "PBS_", "LSB_", "LSF_", "SGE_")
_BATCH_JOB_OF_SGE = ("JOB_ID", "PE_HOSTFILE")
"""What tells PRRTE (its frameworks ras and plm) of an allocation."""

_SETTINGS = ("PMIX_MCA_", "OMPI_MCA_", "PRTE_MCA_")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One start of mpiexec: ``ranks`` times the guard, all on this host.

    ``directory`` exists and is private to the launch (mode 0700).  Its maker removes it
    when mpiexec has ended.  ``ulfm`` false starts a job that dies whole with its first
    rank.  ``as_root`` permits mpiexec to run as root.
    """

    mpiexec: Path
    ranks: int
    directory: Path
    guard: tuple[str, ...]
    ulfm: bool = True
    as_root: bool = False

    def __post_init__(self) -> None:
        """Refuse launches that mpiexec would misread."""
        if self.ranks < 1:
            raise ValueError(f"a launch needs at least 1 rank, got {self.ranks}")
        if not self.guard:
            raise ValueError("a launch needs the guard's command, got an empty one")

    def command(self) -> tuple[str, ...]:
        """Return the whole command line, mpiexec first."""
        return (
            str(self.mpiexec),
            *(("--allow-run-as-root",) if self.as_root else ()),
            *("--oversubscribe", "--bind-to", "none"),
            *(_FAULT_TOLERANCE if self.ulfm else ()),
            *_TRANSPORT,
            *("--mca", "btl_sm_backing_directory", str(self.directory)),
            *("-n", str(self.ranks)),
            *self.guard,
        )

    def environment(self, base: Mapping[str, str], **extra: str) -> dict[str, str]:
        """Return ``base`` made fit for mpiexec, with ``extra`` variables for the guards.

        The variables of an enclosing MPI job are left out: with them mpiexec would take
        itself for a rank of that job.  The site's settings (``OMPI_MCA_*`` and the like)
        stay.  So are those of a batch job: mpiexec would spread the ranks over all of its
        hosts, and start daemons there by srun and the like.  Workers keep them.
        """
        outside = outside_of_mpi(base)
        here = {name: value for name, value in outside.items() if not _names_batch_job(name)}
        return {**here, "TMPDIR": str(self.directory), **extra}


def _names_batch_job(name: str) -> bool:
    return name.startswith(_BATCH_JOB) or name in _BATCH_JOB_OF_SGE


def outside_of_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without the variables of an MPI job that encloses this process.

    The site's settings for MPI (``OMPI_MCA_*`` and the like) stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_ENCLOSING_JOB) or name.startswith(_SETTINGS)
    }
