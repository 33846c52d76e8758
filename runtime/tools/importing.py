"""An import: a job that makes the first checkpoint of a run and trains nothing.

It is an ordinary job of one worker, because only the script knows the tensors of its run.
A failed import leaves no run in the directory, so that the next import may fix other
terms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.digest import state_sha256
from holdfast.checkpoint.errors import TRANSIENT, StorageFailed
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ExitCode, RunUnreadable, UsageError
from holdfast.runtime.head.job_setup import check_files
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.stored_run import StoredRun
from holdfast.runtime.training.weights_source import WeightsSource, is_weight

_FIRST_STEP = 0


@dataclass(frozen=True, slots=True)
class ImportedState:
    """The first state of a run, as it was read back; ``sha256`` is that of the whole state."""

    tensors: int
    weights: int
    nbytes: int
    sha256: str


def run_import(options: JobOptions) -> ExitCode:
    """Make the run that ``options`` describes, with its ``initial`` weights at step 0.

    ``options.workers`` are those that the run is meant for.  Returns ``DONE`` if the
    checkpoint is there; any other code was explained on stderr.

    Raises:
        JobError: the request is not valid, or another job owns the directory; nothing
            has changed there.
    """
    from holdfast.runtime.head.client import run_job

    check_files(options)
    _check(options)
    code = run_job(_importing_job(options))
    if CheckpointStore(options.run_dir).steps():
        return ExitCode.DONE if code is ExitCode.STOPPED_EARLY else code
    _withdraw(RunDirectory(options.run_dir))
    return code


def imported_state(run_dir: Path) -> ImportedState:
    """Read the first step of a run back, and return its contents.

    Raises:
        CheckpointError: the step does not verify.
    """
    run = StoredRun.open(run_dir)
    restored = restore(run.store, _FIRST_STEP, run_id=run.run_id)
    state = restored.state
    weights = sum(map(is_weight, state))
    nbytes = sum(tensor.nbytes for tensor in state.values())
    return ImportedState(len(state), weights, nbytes, state_sha256(state))


def _check(options: JobOptions) -> None:
    """Refuse a wrong request before anything is made."""
    assert options.initial is not None
    if options.initial.resolve() == options.run_dir.resolve():
        raise UsageError(f"{options.initial} is the run itself; choose another --run-dir")
    WeightsSource(options.initial, options.initial_step).check()
    steps = () if options.fresh else _steps_in(options.run_dir)
    if steps:
        raise UsageError(
            f"the run in {options.run_dir} has a checkpoint of step {steps[0]} already; resume it "
            "with `holdfast run`, choose another --run-dir, or set it aside with --fresh"
        )


def _steps_in(run_dir: Path) -> tuple[int, ...]:
    try:
        return CheckpointStore(run_dir).steps()
    except StorageFailed as error:
        kind = RunUnreadable if error.errno in TRANSIENT else UsageError
        raise kind(f"run directory {run_dir} cannot be used: {error}") from error


def _importing_job(options: JobOptions) -> JobOptions:
    """Return the job that makes the run: one worker, on the terms of ``config.workers``."""
    return dataclasses.replace(
        options,
        workers=1,
        microbatches=options.new_microbatches,
        threads=options.new_threads,
        # An old run without checkpoints may have other terms, and holds nothing to resume.
        fresh=True,
        # A single worker has no survivors, so it needs no ULFM.
        shrink=False,
        trains=False,
    )


def _withdraw(directory: RunDirectory) -> None:
    """Remove the traces of a run that holds nothing; the lease is still this process's."""
    with contextlib.suppress(OSError):  # the folder is missing, or holds a partial checkpoint
        directory.checkpoints_path.rmdir()
    shutil.rmtree(directory.logs_path, ignore_errors=True)
    directory.journal_path.unlink(missing_ok=True)
    directory.record_path.unlink(missing_ok=True)
