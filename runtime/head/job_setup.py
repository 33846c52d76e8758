"""Everything that is settled before the first launch: run directory, lease, terms, environment."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.recovery.fault import Fault, parse_faults
from holdfast.recovery.placement import total_slots, usable_hosts
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import UsageError
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
from holdfast.runtime.options.mca_settings import pair_of
from holdfast.runtime.options.run_terms import open_or_create_record, script_terms
from holdfast.runtime.options.sources import check_script, seen_from
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.failure_history import HistoryReader, host_losses
from holdfast.runtime.run.files import ForeignFile, answering, refusal
from holdfast.runtime.run.journal import Journal, JournalReader, next_generation, read_journal
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
    *("holdfast.runtime.fit.script_setup", "holdfast.runtime.training.trainer"),
    *("holdfast.runtime.system.connections", "holdfast.runtime.system.network"),
)
"""What every worker imports, for any script."""

FOR_KERAS = ("holdfast.runtime.fit.keras_fit",)
"""What every worker imports as soon as its script has imported Keras."""

_BRINGS_ALONG = {"keras": ("tensorflow", "keras"), "tensorflow": ("tensorflow", "keras")}


@dataclass(frozen=True, slots=True)
class JobSetup:
    """A job that may begin."""

    options: JobOptions
    record: RunRecord
    library: MpiLibrary
    journal: Journal
    lease: Lease
    first_generation: int
    preload: tuple[str, ...]
    environment: dict[str, str]
    is_resumed: bool
    history: HistoryReader
    cwd: Path
    """Where the user has started the job: its script may name files from there."""
    program: Program
    """What each launch runs, as it was when the job began."""
    saved_step: int | None = None
    """The newest step, None without any."""
    lost_step: int | None = None
    """The newest step that the journal knows of, if none so new is left."""
    set_aside: Path | None = None
    """Where the run lies now that ``--fresh`` has moved out of the way."""
    checked_hosts: CheckedHosts | None = None
    """The hosts of the job and their network, None if it has no other host."""

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
            cwd=self.cwd,
            environment=self.environment,
            heartbeat_timeout_s=self.options.heartbeat_timeout_s,
            preload=self.preload,
            lease=self.lease.fileno(),
            verbose=self.options.verbose,
        )

    @property
    def started(self) -> dict[str, object]:
        """The fields of ``job_started`` in the journal."""
        options, record = self.options, self.record
        return {
            "workers": options.workers,
            "spares": options.spares,
            "microbatches": record.microbatches,
            "seed": record.seed,
            "threads": record.threads,
            "script": str(options.script),
            "argv": list(options.argv),
            "terms": script_terms(options, self.program),
            **({"hosts": list(map(str, options.hosts))} if options.hosts else {}),
            **({"options": list(options.told)} if options.told else {}),
        }

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
            losses={} if checked is None else _losses_in(self.options),
            network=None if checked is None else str(checked.network.network),
            addresses=() if checked is None else checked.network.addresses,
            facts=() if checked is None else tuple(map(to_plain, checked.facts)),
        )

    def _struck(self) -> tuple[tuple[object, ...], ...]:
        """Return the faults that have struck in this run, if the job has any to tell of."""
        if not self.options.faults:
            return ()
        from holdfast.runtime.head.job import fault_address

        path = RunDirectory(self.options.run_dir).journal_path
        with contextlib.suppress(OSError):  # nobody knows what has struck
            records = [record for record in read_journal(path) if record["event"] == "fault"]
            return tuple(fault_address(record) for record in records)
        return ()


def prepare_job(options: JobOptions, watch: Stillness) -> JobSetup:
    """Check everything that can be checked before a process is started.

    Attempts with one ``watch`` find out whether the owner of a lease without a lock lives.

    Raises:
        UsageError: the request cannot be carried out as it stands.
        RunDirectoryBusy: another job owns the run directory.
    """
    faults = tuple(host_faults(os.environ))  # while this process has one thread
    with answering(options.run_dir, say):
        check_files(options)
        program = Program.of(options.script)
    source = ScriptSource.of(program.text)
    backend = source.backend if source.uses_keras else TENSORFLOW
    for fault in (*faults, *job_faults(os.environ, options.workers + options.spares, backend)):
        raise UsageError(fault)
    library = identify(find_mpiexec(options.mpiexec))
    _refuse_launcher(options, library)
    _refuse_faults_elsewhere(options)
    if not options.hosts:  # otherwise their network has to be known first
        _require_fitness(options, library, None)
    with answering(options.run_dir, say):
        directory = RunDirectory(options.run_dir)
        directory.prepare()
        lease = directory.acquire_lease(watch=watch)
    try:
        asked, (options, checked) = options, _check_hosts(options, library, lease)
        if checked is not None:
            os.environ.update(checked.variables)  # it counts among the numerics of the record
        if options.hosts:
            _require_fitness(options, library, checked)
        with answering(options.run_dir, say):
            if options.script != asked.script:
                program = Program.of(options.script)  # by the paths that all hosts know
            setup = _setup_in(options, program, library, lease, checked)
    except BaseException:
        # --fresh has perhaps moved what another job has saved: that job must see so.
        lease.end(is_refused=not options.fresh)
        raise
    return setup


def _refuse_launcher(options: JobOptions, library: MpiLibrary) -> None:
    """Refuse an MPI that cannot do what the options ask for.

    Raises:
        UsageError: the message gives the reason and the remedies.
    """
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


def _require_fitness(
    options: JobOptions, library: MpiLibrary, checked: CheckedHosts | None
) -> None:
    """Refuse an MPI that this job cannot rely on, used as the job will use it."""
    network = None if checked is None else checked.network.network
    terms = LaunchTerms(network, tuple(pair_of(setting) for setting in options.mca))
    needed = Trust.ONE if options.shrink else Trust.RELAUNCH
    require(library, os.environ, needed, terms)


def _refuse_faults_elsewhere(options: JobOptions) -> None:
    """Refuse a fault of a host that the job does not have."""
    given = parse_faults(options.faults)
    faults = [fault for fault in given if isinstance(fault, Fault) and fault.host]
    if not faults:
        return
    from holdfast.runtime.hosts.checked_hosts import settle_hosts

    names = [host.name for host in settle_hosts(options)]
    for fault in faults:
        if fault.host not in names:
            its = f"its hosts are {', '.join(names)}" if names else "it has one; name a worker"
            raise UsageError(f"--inject '{fault}': the job has no host {fault.host}: {its}")


def _check_hosts(
    options: JobOptions, library: MpiLibrary, lease: Lease
) -> tuple[JobOptions, CheckedHosts | None]:
    """Return the hosts of a job over several, None for a job on one, which imports nothing for it.

    The working directory may have another name on this host alone, as that of a server's disk.  So
    the one that the user's shell has is tried, too; the options and ``PWD`` have what all know.

    Raises:
        UsageError: a host cannot be reached, or differs in what must be the same.
    """
    if not options.hosts:
        return options, None
    from holdfast.runtime.hosts.checked_hosts import check_hosts, settle_hosts

    named = settle_hosts(options)
    hosts = usable_hosts(named, _losses_in(options))
    for host in set(named) - set(hosts):
        say(
            f"host {host.name} was lost twice within a day, and is left out until a day has "
            "passed; --try-lost-hosts takes it again"
        )
    if not hosts:
        return options, None
    if not total_slots(hosts):
        raise UsageError(
            "all hosts that take workers were lost twice within a day; name others by --hosts, or "
            "take them again by --try-lost-hosts"
        )
    refusal = None
    for directory in dict.fromkeys((Path.cwd(), logical_directory())):
        seen = seen_from(options, directory)
        proof = RunDirectory(seen.run_dir).lease_path, lease.token
        try:
            checked = check_hosts(seen, directory, hosts, library.mpiexec, proof, say)
        except UsageError as error:
            refusal = refusal or error
            continue
        os.environ["PWD"] = str(directory)  # the head asks it
        return seen, checked
    assert refusal is not None
    raise refusal


def _losses_in(options: JobOptions) -> dict[str, int]:
    """Return how often the run has lost its hosts of late; a new one has lost none."""
    with contextlib.suppress(OSError):  # nobody knows
        if not options.fresh and not options.try_lost_hosts:
            journal = RunDirectory(options.run_dir).journal_path
            return host_losses(JournalReader(journal).read(), time.time())
    return {}


def _setup_in(
    options: JobOptions,
    program: Program,
    library: MpiLibrary,
    lease: Lease,
    checked: CheckedHosts | None,
) -> JobSetup:
    """Return the setup of a job that has taken its run directory: record, journal and terms."""
    directory = RunDirectory(options.run_dir)
    set_aside = directory.set_aside() if options.fresh else None
    source = ScriptSource.of(program.text)
    threads = None if checked is None else checked.threads
    record, is_resumed = open_or_create_record(directory, options, program, threads)
    with contextlib.suppress(OSError):  # a launch that needs them then says so
        keep(directory.program_path, program.texts.values())
    history = HistoryReader(directory.journal_path)
    # Asked here: a list that fails just now ends the job here, and is no list without a step.
    saved_step = directory.newest_step if directory.has_checkpoints else None
    lost_step = _lost_step(history, saved_step) if is_resumed else None
    return JobSetup(
        options=options,
        record=record,
        library=library,
        journal=open_journal(directory, record.run_id),
        lease=lease,
        first_generation=next_generation(directory),
        preload=useful_preload(options.preload, source),
        environment=job_environment(record.threads)
        | library.variables(os.environ)
        | source.variables,
        is_resumed=is_resumed,
        history=history,
        cwd=logical_directory() if checked else Path.cwd(),
        program=program,
        saved_step=saved_step,
        lost_step=lost_step,
        set_aside=set_aside,
        checked_hosts=checked,
    )


def _lost_step(history: HistoryReader, saved_step: int | None) -> int | None:
    history.read()
    known = history.history.saved_step
    is_there = saved_step is not None and (known is None or known <= saved_step)
    return None if is_there else known


def check_files(options: JobOptions) -> None:
    """Refuse a script that cannot be read, and weights that are not there.

    A run that resumes does not look at the weights.

    Raises:
        UsageError: one sentence says which.
    """
    check_script(options.script)
    path = options.initial
    # Not Path.exists(): that raises where the file system fails, which is told later.
    is_resumed = os.path.exists(RunDirectory(options.run_dir).record_path) and not options.fresh
    if path is None or is_resumed:
        return
    if not os.path.exists(path) and not os.path.exists(f"{path}.index"):
        raise UsageError(
            f"--initial {path} does not exist; begin with a .weights.h5, .keras or .npz file, the "
            "prefix or directory of a TensorFlow checkpoint, or another run's directory"
        )


def open_journal(directory: RunDirectory, run_id: str) -> Journal:
    """Open the journal, for the lines before there is a head.

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


def useful_preload(wanted: tuple[str, ...], source: ScriptSource) -> tuple[str, ...]:
    """Return the modules to import in warm processes.

    Of ``wanted``, those that the script names in an import; a script that
    cannot be parsed will import none.
    """
    needed = {name for module in source.imported for name in _BRINGS_ALONG.get(module, (module,))}
    useful = tuple(module for module in wanted if module in needed)
    return (*FOR_ALL, *useful, *(FOR_KERAS if "keras" in useful else ()))
