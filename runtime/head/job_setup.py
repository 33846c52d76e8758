"""The start of a job as one list: each check settles one thing of a job, or refuses the job.

`prepare_job` calls the checks of `CHECKS` in their order.  Each takes the `JobSetup`, which has
what the checks before it have settled.  It returns nothing, or raises a `JobError` whose sentence
is the user's.  Nothing runs by then, and a lease that was taken is given back.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.errors import CheckpointError
from holdfast.recovery.fault import Fault, parse_faults
from holdfast.recovery.placement import total_slots, usable_hosts
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.head.head_process import HeadTerms
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.head.preconditions import (
    TENSORFLOW,
    ScriptSource,
    host_faults,
    job_faults,
)
from holdfast.runtime.head.screen import say
from holdfast.runtime.host.launchers import (
    INSTALL_HINT,
    OPEN_MPI,
    LaunchTerms,
    MpiLibrary,
    find_mpiexec,
    identify,
    job_environment,
)
from holdfast.runtime.host.mpi_trial import Trust, require
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import (
    complete_run,
    open_or_create_record,
    refuse_other_copies,
    refuse_other_program,
    script_terms,
)
from holdfast.runtime.options.sources import check_script, seen_from
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.entries import entries_of, of
from holdfast.runtime.run.events import FaultStruck, JobStarted
from holdfast.runtime.run.failure_history import HistoryReader, host_losses
from holdfast.runtime.run.files import ForeignFile, answering, refusal
from holdfast.runtime.run.journal import Journal, next_generation, read_journal
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.program import Program, keep
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.own_process import logical_directory
from holdfast.runtime.system.witnessed_time import Stillness

if TYPE_CHECKING:
    from holdfast.runtime.head.job import Job
    from holdfast.runtime.hosts.checked_hosts import CheckedHosts

FOR_ALL = (
    *("numpy", "xxhash", "mpi4py", "h5py"),
    *("holdfast.runtime.keras.script_setup", "holdfast.runtime.training.stages"),
    *("holdfast.runtime.system.connections", "holdfast.runtime.system.network"),
)
"""What every worker imports, for any script."""

FOR_KERAS = ("holdfast.runtime.keras.keras_fit",)
"""What every worker imports as soon as its script has imported Keras."""

_BRINGS_ALONG = {"keras": ("tensorflow", "keras"), "tensorflow": ("tensorflow", "keras")}


class NothingToDo(Exception):
    """The run is complete, and a job of it would train nothing; the message says so."""


@dataclass(slots=True)
class JobSetup:
    """A job that may begin, or one in the making: what its checks have settled so far."""

    options: JobOptions
    watch: Stillness = field(default_factory=Stillness)
    """How long the lease of another job has stood still."""
    program: Program = field(init=False)
    """What each launch runs, as it was when the job began."""
    source: ScriptSource = field(init=False)
    library: MpiLibrary = field(init=False)
    lease: Lease = field(init=False)
    record: RunRecord = field(init=False)
    history: HistoryReader = field(init=False)
    journal: Journal = field(init=False)
    is_resumed: bool = False
    first_generation: int = 1
    saved_step: int | None = None
    """The newest step of the run, None without any."""
    lost_step: int | None = None
    """The newest step that the journal knows of, None unless it is gone."""
    set_aside: Path | None = None
    """Where the run before lies, None unless ``--fresh`` has moved one out of the way."""
    copies_told: tuple[str, ...] = ()
    """What there is to tell of the place of copies."""
    checked_hosts: CheckedHosts | None = None
    """The hosts of the job and their network, None if it has no other host."""

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return RunDirectory(self.options.run_dir)

    @property
    def preload(self) -> tuple[str, ...]:
        """The modules to import in warm processes: of those that are wanted, those in use."""
        needed = {
            name for module in self.source.imported for name in _BRINGS_ALONG.get(module, (module,))
        }
        useful = tuple(module for module in self.options.preload if module in needed)
        return (*FOR_ALL, *useful, *(FOR_KERAS if "keras" in useful else ()))

    @property
    def missing_modules(self) -> tuple[str, ...]:
        """The modules to preload that the user has named, and that are not there."""
        return tuple(filter(self._is_missing, self.options.named_modules))

    def _is_missing(self, module: str) -> bool:
        name = module.partition(".")[0]
        places = [str(self.options.script.parent), *sys.path]
        return name not in sys.builtin_module_names and not PathFinder.find_spec(name, places)

    def head_terms(self, directory: Path) -> HeadTerms:
        """Return the terms of a head that works in ``directory``."""
        return HeadTerms(
            directory=directory,
            # The user's: the script may name files from there.
            cwd=logical_directory() if self.checked_hosts else Path.cwd(),
            environment=job_environment(self.record.threads)
            | self.library.variables(os.environ)
            | self.source.variables,
            heartbeat_timeout_s=self.options.heartbeat_timeout_s,
            preload=self.preload,
            lease=self.lease.fileno(),
            verbose=self.options.verbose,
        )

    @property
    def started(self) -> JobStarted:
        """What the journal says of the begin."""
        options, record = self.options, self.record
        return JobStarted(
            workers=options.workers,
            spares=options.spares,
            microbatches=record.microbatches,
            seed=record.seed,
            threads=record.threads,
            script=str(options.script),
            argv=tuple(options.argv),
            hosts=tuple(map(str, options.hosts)) or None,
            options=tuple(options.told) or None,
            terms=script_terms(options, self.program),
        )

    def job(self, limits: TimeLimits) -> Job:
        """Return what the head is told, once the journal knows of the job's begin."""
        from holdfast.runtime.head.job import Job  # it starts meanwhile

        options, checked = self.options, self.checked_hosts
        config = WorkerConfig(
            options=options,
            worker=WorkerId(0),
            generation=self.first_generation,
            workers=tuple(map(WorkerId, range(options.workers + options.spares))),
            record=self.record,
            history=self.history.read(),
            lease_token=self.lease.token,
            program=self.program.digests,
            script_begun=self.program.script,
        )
        return Job(
            config=config,
            mpiexec=self.library.mpiexec,
            mpi_library=self.library.name,
            preload=self.preload,
            missing_modules=self.missing_modules,
            saved_step=self.saved_step,
            struck=self._struck(),
            limits=limits,
            lost_lines=self.journal.lost,
            hosts=() if checked is None else checked.hosts,
            losses={} if checked is None else _losses_in(options),
            network=None if checked is None else str(checked.network),
            facts=() if checked is None else tuple(map(to_plain, checked.facts)),
        )

    def _struck(self) -> tuple[tuple[object, ...], ...]:
        """Return the faults that have struck in this run, if the job has any to tell of."""
        if not self.options.faults:
            return ()
        path = self.directory.journal_path
        with contextlib.suppress(OSError):  # nobody knows what has struck
            struck = of(entries_of(read_journal(path)), FaultStruck)
            return tuple(entry.event.address for entry in struck)
        return ()


def prepare_job(options: JobOptions, watch: Stillness) -> JobSetup:
    """Check everything that can be checked before a process is started.

    Raises:
        UsageError: the request cannot be carried out as it stands.
        RunDirectoryBusy: another job owns the run directory.
        NothingToDo: the run is complete.
    """
    setup = JobSetup(options, watch)
    try:
        for check in CHECKS:
            with contextlib.ExitStack() as bounded:
                if check in _OF_THE_DISK:
                    bounded.enter_context(answering(options.run_dir, say))
                check(setup)
    except BaseException:
        if hasattr(setup, "lease"):
            # --fresh has perhaps moved what another job has saved: that job must see so.
            setup.lease.end(is_refused=not options.fresh)
        raise
    return setup


def _check_host(_: JobSetup) -> None:
    """Refuse a host on which no job runs: while this process has one thread."""
    for fault in host_faults(os.environ):
        raise UsageError(fault)


def _check_files(setup: JobSetup) -> None:
    """Refuse a script that cannot be read, and weights that are not there.

    A run that resumes does not look at the weights.
    """
    options = setup.options
    check_script(options.script)
    setup.program = Program.of(options.script)
    setup.source = ScriptSource.of(setup.program.text)
    path = options.initial
    # Not Path.exists(): that raises where the file system fails, which is told later.
    is_resumed = os.path.exists(setup.directory.record_path) and not options.fresh
    if path is None or is_resumed:
        return
    if not os.path.exists(path) and not os.path.exists(f"{path}.index"):
        raise UsageError(
            f"--initial {path} does not exist; begin with a .weights.h5, .keras or .npz file, the "
            "prefix or directory of a TensorFlow checkpoint, or another run's directory"
        )


def _check_run(setup: JobSetup) -> None:
    """Refuse a run of another program, and one that is complete."""
    refuse_other_program(setup.options, setup.program)
    complete = complete_run(setup.options, setup.program)
    if complete is not None:
        raise NothingToDo(complete)


def _check_limits(setup: JobSetup) -> None:
    """Refuse limits of this user and a backend of Keras with which no worker trains."""
    options, source = setup.options, setup.source
    backend = source.backend if source.uses_keras else TENSORFLOW
    for fault in job_faults(os.environ, options.workers + options.spares, backend):
        raise UsageError(fault)


def _check_library(setup: JobSetup) -> None:
    """Refuse an MPI that cannot do what the options ask for."""
    options = setup.options
    library = setup.library = identify(find_mpiexec(options.mpiexec))
    if options.hosts and library.launcher.network_parameters is None:
        raise UsageError(
            f"{library} has no workers on other hosts: its launcher gives each worker an open "
            f"connection, which stays on this host; {INSTALL_HINT}, or leave --hosts out"
        )
    if options.mca and library.launcher is not OPEN_MPI:
        raise UsageError(
            f"--mca is for Open MPI, and this mpiexec is of {library}; leave --mca out, or set "
            f"{library.name}'s own variables"
        )


def _check_faults(setup: JobSetup) -> None:
    """Refuse a fault of a host that the job does not have."""
    given = parse_faults(setup.options.faults)
    faults = [fault for fault in given if isinstance(fault, Fault) and fault.host]
    if not faults:
        return
    from holdfast.runtime.hosts.checked_hosts import settle_hosts

    names = [host.name for host in settle_hosts(setup.options)]
    for fault in faults:
        if fault.host not in names:
            its = f"its hosts are {', '.join(names)}" if names else "it has one; name a worker"
            raise UsageError(f"--inject '{fault}': the job has no host {fault.host}: {its}")


def _try_mpi_here(setup: JobSetup) -> None:
    """Refuse an MPI that this job cannot rely on; with hosts, their network has to be known."""
    if not setup.options.hosts:
        _try_mpi(setup)


def _try_mpi(setup: JobSetup) -> None:
    """Refuse an MPI that this job cannot rely on, used as the job will use it."""
    options, hosts = setup.options, setup.checked_hosts
    terms = LaunchTerms(None if hosts is None else str(hosts.network), tuple(options.mca))
    needed = Trust.ONE if options.shrink else Trust.RELAUNCH
    require(setup.library, os.environ, needed, terms)


def _take_directory(setup: JobSetup) -> None:
    """Refuse a directory that cannot be written to, or that another job has."""
    setup.directory.prepare()
    setup.lease = setup.directory.acquire_lease(watch=setup.watch)


def _check_hosts(setup: JobSetup) -> None:
    """Refuse hosts that cannot be reached, or that differ in what must be the same.

    The working directory may have another name on this host alone, as that of a server's disk.  So
    the one that the user's shell has is tried, too; the options and ``PWD`` have what all know.  A
    job on one host imports nothing for others.
    """
    options = setup.options
    if not options.hosts:
        return
    from holdfast.runtime.hosts.checked_hosts import check_hosts, settle_hosts

    named = settle_hosts(options)
    hosts = usable_hosts(named, _losses_in(options))
    for host in set(named) - set(hosts):
        say(
            f"host {host.name} was lost twice within a day, and is left out until a day has "
            "passed; --try-lost-hosts takes it again"
        )
    if hosts and not total_slots(hosts):
        raise UsageError(
            "all hosts that take workers were lost twice within a day; name others by --hosts, or "
            "take them again by --try-lost-hosts"
        )
    refusal: UsageError | None = None
    for directory in dict.fromkeys((Path.cwd(), logical_directory())) if hosts else ():
        seen = seen_from(options, directory)
        proof = RunDirectory(seen.run_dir).lease_path, setup.lease.token
        try:
            setup.checked_hosts = check_hosts(
                seen, directory, hosts, setup.library.mpiexec, proof, say
            )
        except UsageError as error:
            refusal = refusal or error
            continue
        setup.options = seen
        os.environ["PWD"] = str(directory)  # the head asks it
        os.environ.update(
            setup.checked_hosts.variables
        )  # they count among the numerics of the record
        break
    else:
        if refusal is not None:
            raise refusal
    _try_mpi(setup)


def _losses_in(options: JobOptions) -> dict[str, int]:
    """Return how often the run has lost its hosts of late; a new one has lost none."""
    if options.fresh or options.try_lost_hosts:
        return {}
    return host_losses(RunDirectory(options.run_dir).journal_path, time.time())


def _take_copies(setup: JobSetup) -> None:
    """Refuse the copies of another run; take what this one lacks, and its place of copies has."""
    options = setup.options
    if options.copy_to is None:
        return
    from holdfast.runtime.saving.taken_copies import take_copies  # with NumPy

    try:
        setup.copies_told = take_copies(
            setup.directory,
            options.copy_to,
            say,
            lambda theirs: refuse_other_copies(theirs, options, setup.program),
            is_fresh=options.fresh,
        )
    except (CheckpointError, OSError) as error:
        raise RunUnreadable(f"{options.copy_to} was not read to its end: {error}") from error


def _open_run(setup: JobSetup) -> None:
    """Begin a run or go on with one; refuse a record that says otherwise than the options."""
    directory = setup.directory
    setup.set_aside = directory.set_aside() if setup.options.fresh else None
    threads = None if setup.checked_hosts is None else setup.checked_hosts.threads
    if setup.checked_hosts is not None:
        setup.program = Program.of(setup.options.script)  # by the paths that all hosts know
    setup.record, setup.is_resumed = open_or_create_record(
        directory, setup.options, setup.program, threads
    )
    with contextlib.suppress(OSError):  # a launch that needs the texts then says so
        keep(directory.program_path, setup.program.texts.values())
    # A list of steps that fails just now ends the job here, and is no list without a step.
    saved_step = setup.saved_step = directory.newest_step
    setup.history = HistoryReader(directory.journal_path)
    setup.history.read()
    known = setup.history.history.saved_step
    is_lost = known is not None and (saved_step is None or saved_step < known)
    setup.lost_step = known if setup.is_resumed and is_lost else None
    setup.first_generation = next_generation(directory)


def _open_journal(setup: JobSetup) -> None:
    """Refuse a journal that cannot be written: it has the lines before there is a head."""
    setup.journal = open_journal(setup.directory, setup.record.run_id)


def open_journal(directory: RunDirectory, run_id: str) -> Journal:
    """Open the journal of a run.

    Raises:
        UsageError: it cannot be written, or is not the run's own file.
        RunUnreadable: it cannot be written just now.
    """
    path = directory.journal_path
    try:
        return Journal(path, run_id=run_id, source="client")
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise refusal(
            path,
            error,
            f"journal {path} cannot be written: {error.strerror or error}; "
            "make it writable or choose another --run-dir",
        ) from error


CHECKS: tuple[Callable[[JobSetup], None], ...] = (
    _check_host,
    _check_files,
    _check_run,
    _check_limits,
    _check_library,
    _check_faults,
    _try_mpi_here,
    _take_directory,
    _check_hosts,
    _take_copies,
    _open_run,
    _open_journal,
)
"""All that is settled before a process is started, in this order."""

_OF_THE_DISK = (_check_files, _check_run, _take_directory, _open_run, _open_journal)
"""Those that the run directory must answer, whose disk may hang."""
