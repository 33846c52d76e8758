"""What differs between the launchers of MPI libraries: one row each.

Open MPI starts ranks with PRRTE.  MPICH and Intel MPI start them with Hydra.  Only Open
MPI's ranks can outlive the death of another one.  Under Hydra each death ends the launch,
and so it needs ``--no-shrink``.

The facts behind the rows were measured on Open MPI 5.0 with PRRTE 3.0, MPICH 5.0 and Intel
MPI 2021.19:

* ``--bind-to none``, ``-bind-to none`` and ``I_MPI_PIN=0``: with one or two ranks each would
  be bound to one core, and all threads of a worker with it;
* ``--map-by`` and ``prte_default_hostfile``: a site's files of settings may
  spread the ranks over hosts and cores that this job does not use;
* ``pml ob1`` and ``btl self,sm``: point-to-point layers that survive failures;
  leaving out ``ofi`` also saves a second at every start.  ``tcp`` survives them too, but
  listens on all interfaces, even with ``btl_tcp_if_include``, and takes messages from
  any sender.  One host does without;
* ``coll ^han,adapt``: ``han`` has returned success with wrong sums after a
  failure;
* ``mpi_add_procs_cutoff``: every rank knows every peer from the start.  Without it a
  revoke can hang if it must reach a peer without any earlier message;
* ``btl_sm_backing_directory``: everything that a killed mpiexec would leave behind lies in
  one private directory, which its owner removes;
* ``shmem mmap``: without it each rank makes ``/dev/shm/open_mpi.0000`` for a moment,
  to see whether it could, and a rank that is killed then leaves it there;
* ``opal_signal`` and ``UCX_HANDLE_ERRORS``: a fault such as SIGSEGV ends its process at once.  The
  handlers of both libraries print a stack, and wait for ever for a lock of malloc that the
  faulting thread holds.  Meanwhile the heart still beats;
* ``-launcher fork``: without it Hydra uses a batch system's launcher, where there is one;
* ``UCX_TLS`` and ``I_MPI_FABRICS``: shared memory alone.  Otherwise each rank listens on
  the network, although no peer is there.

The guard cannot import this table.  It knows the variables that name its rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

ADD_PROCS_CUTOFF = 1024


@dataclass(frozen=True, slots=True)
class Launcher:
    """One kind of mpiexec: what it is told, and what its ranks must have in their environment."""

    library: str
    """The name of the MPI library that it belongs to."""
    options: tuple[str, ...]
    ulfm_options: tuple[str, ...] | None = None
    """Given when survivors shall outlive a death; None if none can."""
    root_options: tuple[str, ...] = ()
    directory_options: tuple[str, ...] = ()
    """Followed by the launch's private directory."""
    environment: tuple[tuple[str, str], ...] = ()
    """Defaults, which the site's settings override."""

    def reaching_new_ranks(self) -> Launcher:
        """Return the same with TCP: Open MPI's ranks of two launches share no memory."""
        options = tuple(word.replace("self,sm", "self,sm,tcp") for word in self.options)
        return replace(self, options=options)

    @property
    def can_shrink(self) -> bool:
        """Whether survivors can be asked to outlive a death."""
        return self.ulfm_options is not None


OPEN_MPI = Launcher(
    library="Open MPI",
    options=(
        *("--oversubscribe", "--bind-to", "none"),
        *("--map-by", "slot:OVERSUBSCRIBE"),
        *("--prtemca", "prte_default_hostfile", "none"),
        *("--mca", "pml", "ob1"),
        *("--mca", "btl", "self,sm"),
        *("--mca", "coll", "^han,adapt"),
        *("--mca", "mpi_add_procs_cutoff", str(ADD_PROCS_CUTOFF)),
        *("--mca", "shmem", "mmap"),
        *("--mca", "opal_signal", ""),
    ),
    ulfm_options=(
        *("--with-ft", "ulfm"),
        *("--prtemca", "state_base_recoverable", "1"),
        *("--prtemca", "state_base_notify_errors", "1"),
    ),
    root_options=("--allow-run-as-root",),
    directory_options=("--mca", "btl_sm_backing_directory"),
    environment=(("UCX_HANDLE_ERRORS", "none"),),
)
MPICH = Launcher(
    library="MPICH",
    options=("-launcher", "fork", "-bind-to", "none"),
    environment=(("UCX_TLS", "posix,cma,self"), ("UCX_HANDLE_ERRORS", "none")),
)
INTEL_MPI = Launcher(
    library="Intel MPI",
    options=("-launcher", "fork"),
    environment=(("I_MPI_FABRICS", "shm"), ("I_MPI_PIN", "0")),
)

LAUNCHERS = MappingProxyType({row.library: row for row in (OPEN_MPI, MPICH, INTEL_MPI)})
