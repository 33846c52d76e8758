"""Everything that is settled before the first launch: run directory, lease, terms, environment."""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.recovery.event import Launch
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.config import RunConfig
from holdfast.runtime.run.journal import Journal, last_generation
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.own_file import ForeignFile
from holdfast.runtime.run.run_directory import FORMAT, Lease, RunDirectory, RunRecord
from holdfast.runtime.run.run_key import find_key, refuse_other_key
from holdfast.runtime.supervisor.mpi_library import find_mpiexec, identify
from holdfast.runtime.supervisor.ulfm_trial import assess, require_ulfm

_ONE_THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class JobSetup:
    """A job that may begin."""

    config: RunConfig
    record: RunRecord
    mpiexec: Path
    journal: Journal
    lease: Lease
    first_generation: int
    preload: tuple[str, ...]
    environment: dict[str, str]
    is_resumed: bool
    warning: str | None
    key_file: KeyFile | None

    def worker_config(self, command: Launch) -> dict[str, object]:
        """Return what every worker of a launch is told, but for its own id."""
        config = self.config
        return {
            "generation": command.generation,
            "workers": list(command.workers),
            "capacity": config.workers,
            "run_id": self.record.run_id,
            "run_dir": str(config.run_dir),
            "microbatches": self.record.microbatches,
            "seed": self.record.seed,
            "threads": self.record.threads,
            "heartbeat_timeout_s": config.heartbeat_timeout_s,
            "script": str(config.script),
            "argv": list(config.argv),
            "faults": list(config.faults),
            "strict": config.strict,
            "shrink": config.shrink,
            "save_every": config.save_every,
            "verify_every": config.verify_every,
            "snapshot_copies": config.snapshot_copies,
            "scrub_every_s": config.scrub_every_s,
            "repair_from": None if config.repair_from is None else str(config.repair_from),
            "initial": None if config.initial is None else str(config.initial),
            "initial_step": config.initial_step,
            "trains": config.trains,
            "key_file": self.key_file and dataclasses.asdict(self.key_file),
        }


def prepare_job(config: RunConfig) -> JobSetup:
    """Check everything that can be checked before a process is started.

    Raises:
        UsageError: the request cannot be carried out as it stands.
        RunDirectoryBusy: another job owns the run directory.
    """
    key_file = find_key(config.key_file, config.run_dir)
    mpiexec = find_mpiexec(config.mpiexec)
    library = identify(mpiexec)
    if config.shrink:
        require_ulfm(assess(library, os.environ))
    directory = RunDirectory(config.run_dir)
    directory.prepare()
    lease = directory.acquire_lease()
    if config.fresh:
        directory.set_aside()
    before = directory.load_record()
    if before is None:
        record = _record(config, directory, key_file)
    else:
        refuse_other_key(key_file, before.key_id, config.run_dir)
        record = _resumed(config, before)
    return JobSetup(
        config=config,
        record=record,
        mpiexec=mpiexec,
        journal=open_journal(directory, record.run_id),
        lease=lease,
        first_generation=last_generation(directory.journal_path) + 1,
        preload=useful_preload(config.preload, config.script),
        environment=_environment(record.threads),
        is_resumed=before is not None,
        warning=library.warning if config.shrink else None,
        key_file=key_file,
    )


def open_journal(directory: RunDirectory, run_id: str) -> Journal:
    """Open the supervisor's journal.

    Raises:
        UsageError: it cannot be written, or is not the run's own file.
    """
    path = directory.journal_path
    try:
        return Journal(path, run_id=run_id, source="supervisor")
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"journal {path} cannot be written: {error.strerror or error}; "
            "make it writable or choose another --run-dir"
        ) from error


def _record(config: RunConfig, directory: RunDirectory, key_file: KeyFile | None) -> RunRecord:
    """Create the record of a new run."""
    record = RunRecord(
        run_id=RunRecord.new_id(),
        format=FORMAT,
        created=time.time(),
        microbatches=config.new_microbatches,
        seed=config.new_seed,
        threads=config.new_threads,
        numerics=Numerics.here(threads=config.new_threads).to_json(),
        key_id=key_file.key_id if key_file else None,
    )
    directory.create_record(record)
    return record


def _resumed(config: RunConfig, record: RunRecord) -> RunRecord:
    """Return the terms of an old run under new wishes; what fixes the bytes may not change."""
    for option, wanted, fixed in (
        ("--microbatches", config.microbatches, record.microbatches),
        ("--seed", config.seed, record.seed),
    ):
        if wanted is not None and wanted != fixed:
            raise UsageError(
                f"the run in {config.run_dir} was begun with {option} {fixed}, not {wanted}; "
                f"leave {option} out, or choose another --run-dir"
            )
    threads = record.threads if config.threads is None else config.threads
    now = Numerics.here(threads=threads).to_json()
    if config.strict and record.numerics != now:
        changed = [name for name in now if record.numerics.get(name) != now[name]]
        found = ", ".join(f"{n} was {record.numerics.get(n)}, is {now[n]}" for n in changed)
        raise UsageError(
            f"the numerics of the run in {config.run_dir} have changed: {found}; "
            "make them the same, or run without --strict"
        )
    return dataclasses.replace(record, threads=threads)


def _environment(threads: int) -> dict[str, str]:
    """Return the environment of all processes of the job.

    Thread pools of numeric libraries are part of the numerics; hash
    randomisation would make the order of sets differ between workers; plugins
    that HDF5 finds by itself are code from wherever the variable points.
    """
    environment = dict(os.environ)
    environment.pop("HDF5_PLUGIN_PATH", None)
    environment.update(dict.fromkeys(_ONE_THREAD_POOLS, str(threads)))
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    )
    return environment


_ALWAYS = ("numpy", "xxhash", "mpi4py", "h5py")
"""What every worker imports, whatever its script does."""

_BRINGS_ALONG = {"keras": ("tensorflow", "keras"), "tensorflow": ("tensorflow", "keras")}


def useful_preload(wanted: tuple[str, ...], script: Path) -> tuple[str, ...]:
    """Return the modules to import in warm processes.

    Of ``wanted``, those that the script names in an import; a script that
    cannot be parsed will import none.
    """
    try:
        imported = set(_imports(ast.parse(script.read_bytes())))
    except (SyntaxError, ValueError, OSError):
        return _ALWAYS
    needed = {name for module in imported for name in _BRINGS_ALONG.get(module, (module,))}
    return (*_ALWAYS, *(module for module in wanted if module in needed))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level names of all modules that are imported anywhere in ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
