"""Whether a run is complete, so that its script would do nothing if it ran again.

The workers of the job that has completed it have told what their script has read and written
(`worker/script_watch`).  If all of that is as it was, and the script has the arguments and options
that it had, then nothing is started, and TensorFlow is not imported.  ``--again`` runs it anyway.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import script_terms
from holdfast.runtime.run.entries import Entry, last_of, of, read_on
from holdfast.runtime.run.events import Completed, JobEnded, JobStarted, ScriptEnded
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.run.stamps import is_kept, is_unchanged


def nothing_to_do(options: JobOptions) -> str | None:
    """Return what to say in place of a job that would do nothing, None for any other job."""
    directory = RunDirectory(options.run_dir)
    wishes = options.fresh, options.again, options.faults, options.strict, options.repair_from
    if any(wishes) or not directory.path.is_dir():
        return None
    entries: list[Entry[Any]] = []
    reader = JournalReader(directory.journal_path, tail_bytes=TAIL_BYTES)
    with contextlib.suppress(JobError, OSError):
        read_on(directory, reader.read, entries)
    begun = max((at for at, entry in enumerate(entries) if _begins(entry)), default=None)
    if begun is None:
        return None
    job = entries[begun:]
    ended, completed = last_of(job, JobEnded), last_of(job, Completed)
    if ended is None or ended.event.exit_code != ExitCode.DONE:
        return None
    if completed is None or completed.event.error is not None:
        return None
    step = completed.event.step
    with contextlib.suppress(JobError, OSError):
        fits = _fits(options, directory.load_record())  # else the job says what does not
        if fits and directory.newest_step == step and _is_as_it_was(job, options):
            return (
                f"nothing to do: the run in {options.run_dir} has completed step {step}, state "
                f"sha256 {completed.event.sha256}; {options.script.name}, its arguments and what "
                "it has read are unchanged (--again runs it, --fresh trains anew)"
            )
    return None


def _fits(options: JobOptions, record: RunRecord | None) -> bool:
    """Return whether the numbers that are asked for are those of the run."""
    if record is None:
        return True
    pairs = ((options.seed, record.seed), (options.microbatches, record.microbatches))
    return all(wanted in (None, there) for wanted, there in pairs)


def _begins(entry: Entry[Any]) -> bool:
    return isinstance(entry.event, JobStarted)


def _is_as_it_was(job: list[Entry[Any]], options: JobOptions) -> bool:
    """Return whether all that the scripts of the job have told is the same now."""
    told = [entry.event for entry in of(job, ScriptEnded)]
    terms = script_terms(options, Path.cwd())
    if not told or any(one.unsure or one.terms != terms for one in told):
        return False
    first = min(told, key=lambda one: one.worker)  # it alone writes for all
    return all(is_unchanged(line) for one in told for line in one.read) and all(
        map(is_kept, first.written)
    )
