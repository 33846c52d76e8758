"""The node-local level of saves, as the options of a job ask for it."""

from __future__ import annotations

from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.recovery.schedule import EverySeconds, EverySteps, parse_schedule
from holdfast.runtime.committing.local_level import LocalTerms
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.copies import other_home
from holdfast.runtime.run.run_key import key_in
from holdfast.runtime.worker.context import WorkerContext


def local_store(context: WorkerContext) -> CheckpointStore | None:
    """Return the checkpoints in the local directory, None if this host has none for the run."""
    terms, run_id = local_terms(context.config), context.config.run_id
    if terms is None or not terms.directory.is_dir():
        return None
    if other_home(terms.directory, context.run_dir, run_id) is not None:
        return None
    return CheckpointStore(terms.directory, key=key_in(context.config.key_file))


def local_terms(config: WorkerConfig) -> LocalTerms | None:
    """Return where saves go first and how often they drain, None without a local directory."""
    options = config.options
    directory = options.local_run_dir(config.run_id)
    if directory is None:
        return None
    match parse_schedule(options.drain_every):
        case EverySteps(saves):
            return LocalTerms(directory, every_saves=saves)
        case EverySeconds(seconds):
            return LocalTerms(directory, every_s=seconds)
    raise AssertionError(f"--drain-every {options.drain_every} has passed its check")
