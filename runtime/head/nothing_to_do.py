"""Whether a run is complete, so that its script would do nothing if it ran again.

The workers of the job that has completed it have told what their script has read and written
(`worker/script_watch`).  If all of that is as it was, and the script has the arguments and options
that it had, then nothing is started, and TensorFlow is not imported.  ``--again`` runs it anyway.
Else one line says why it runs again.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import script_terms
from holdfast.runtime.run.entries import Entry, last_job_in, last_of, of
from holdfast.runtime.run.events import Completed, JobEnded, JobStarted, ScriptEnded
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.run.stamps import is_kept, is_unchanged


@dataclass(frozen=True, slots=True)
class CompleteRun:
    """A run that is complete: what to say of it, and whether its script runs again all the same."""

    sentence: str
    runs_again: bool = False


def find_complete_run(options: JobOptions) -> CompleteRun | None:
    """Return what is known of a run that is complete, None for any other job.

    So is it for one that is asked to run, and for one that will refuse what is asked of it.
    """
    directory, script = RunDirectory(options.run_dir), options.script.name
    wishes = options.fresh, options.again, options.faults, options.strict, options.repair_from
    if any(wishes) or not directory.path.is_dir():
        return None
    job = last_job_in(directory)
    ended, completed = last_of(job, JobEnded), last_of(job, Completed)
    if ended is None or ended.event.exit_code != ExitCode.DONE or completed is None:
        return None
    done = completed.event
    step = done.step
    with contextlib.suppress(JobError, OSError):
        if done.error is not None or not _fits(options, directory.load_record()):
            return None
        begin = f"the run in {options.run_dir} has completed step {step}"
        doubt = next(_doubts(job, options), "")
        if directory.newest_step != step:
            doubt = f"its checkpoint of step {step} is gone"
        if doubt:
            return CompleteRun(f"{begin}; {script} runs again, because {doubt}", runs_again=True)
        return CompleteRun(
            f"nothing to do: {begin}, state sha256 {done.sha256}; {script}, its arguments and what "
            "it has read are unchanged (--again runs it, --fresh trains anew)"
        )
    return None


def _fits(options: JobOptions, record: RunRecord | None) -> bool:
    """Return whether the numbers that are asked for are those of the run."""
    if record is None:
        return True
    pairs = ((options.seed, record.seed), (options.microbatches, record.microbatches))
    return all(wanted in (None, there) for wanted, there in pairs)


def _doubts(job: list[Entry[Any]], options: JobOptions) -> Iterator[str]:
    """Yield why the script of a complete run may do something if it runs again."""
    told = [entry.event for entry in of(job, ScriptEnded)]
    if not told:
        yield "nothing is known of what it has read"
        return
    terms = script_terms(options, Path.cwd())
    if any(one.terms != terms for one in told):
        begun = last_of(job, JobStarted)
        if begun is not None and (begun.event.argv or ()) != options.argv:
            yield f"it had {in_words(begun.event.argv)} before"
        yield "its path, its options or the working directory are others than before"
    for one in told:
        if one.unsure:
            yield f"{one.unsure}, and what it finds there may have changed"
    for line in (line for one in told for line in one.read):
        if not is_unchanged(line):
            yield f"{_path_in(line)} has changed since"
    first = min(told, key=lambda one: one.worker)  # it alone writes for all
    for line in first.written:
        if not is_kept(line):
            yield f"{_path_in(line)}, which it has written, is gone or shorter"


def in_words(argv: Sequence[str] | None) -> str:
    """Return the arguments of a script as a phrase."""
    return f"the arguments {shlex.join(argv)!r}" if argv else "no arguments"


def _path_in(line: str) -> str:
    """Return the path behind a stamp, as one would type it here."""
    path = Path(line.partition(" ")[2])
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
