"""The terms of a run: what its record fixes, what a job of it may still wish, and its end.

A run belongs to one script, and to one task of a job array: another one is refused here.  A run
that is complete has nothing to do for the same text, arguments and options.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shlex
import time
from pathlib import Path

from holdfast.recovery.event import WorkerCompleted, WorkerStopped
from holdfast.runtime.batch.schedulers import CHAIN, find_array_task
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.sources import default_run_dir
from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.entries import entry_of, last_job_in, last_of
from holdfast.runtime.run.events import JobEnded, JobStarted, Step
from holdfast.runtime.run.journal import JournalReader
from holdfast.runtime.run.numerics import Numerics, differences, refuse_differences
from holdfast.runtime.run.program import Program, identity_of
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.own_process import usable_cores

_OF_STEPS = (Step, Checkpoint, WorkerCompleted, WorkerStopped)


def open_or_create_record(
    directory: RunDirectory, options: JobOptions, program: Program, threads: int | None = None
) -> tuple[RunRecord, bool]:
    """Return the record of the run in ``directory``, and whether there was one before.

    ``threads`` are those that each worker of a new run can have on all of several hosts.  The
    threads are those of this job: they may change from job to job.  Microbatches that are asked
    for are the run's from now on.  A run without a step takes
    the script and the options as they are: a first start that failed has fixed nothing.

    Raises:
        UsageError: the options are not those that the run was begun with, or there
            are checkpoints without the record of their run.
    """
    before = directory.load_record()
    if before is None and directory.newest_step is not None:
        raise UsageError(
            f"{directory.path} holds checkpoints but no RUN.json, which tells their run; "
            "restore RUN.json, or set the checkpoints aside with --fresh"
        )
    if before is None:
        record = _new_record(options, program, threads)
        directory.create_record(record)
        return record, False
    refuse_other_program(options, program)
    if _has_begun(directory):
        record = _resumed(options, before)
        if record.microbatches != before.microbatches:
            directory.replace_record(dataclasses.replace(before, microbatches=record.microbatches))
        return record, True
    record = dataclasses.replace(
        _new_record(options, program, threads),
        run_id=before.run_id,
        created=before.created,
        draw_seed=before.draw_seed,
    )
    if record != before:
        directory.replace_record(record)
    return record, True


def _has_begun(directory: RunDirectory) -> bool:
    """Return whether the run has trained a step; True if nobody can tell."""
    if directory.newest_step is not None:
        return True
    try:
        lines = JournalReader(directory.journal_path).read()
        return any(isinstance(entry.event, _OF_STEPS) for entry in map(entry_of, lines) if entry)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def refuse_other_program(options: JobOptions, program: Program, *, is_owned: bool = False) -> None:
    """Refuse to go on with the run of another script, or of another task of a job array.

    A run without a step is nobody's, unless a job owns it just now (``is_owned``).

    Raises:
        UsageError: the sentence names both, and what to do.
    """
    directory = RunDirectory(options.run_dir)
    record = None if options.fresh else directory.load_record()
    if record is None:
        return
    other = _other_task(record, options) or _other_script(record, options, program)
    if other and (is_owned or _has_begun(directory)):
        raise UsageError(f"{options.run_dir} holds {other}")


def refuse_other_copies(record: RunRecord, options: JobOptions, program: Program) -> None:
    """Refuse the copies of a run that this job would not go on with, before any is taken.

    Raises:
        UsageError: they are those of another script, or of a run with another seed.
    """
    own = "a URL of its own by --copy-to"
    other = _other_script(record, options, program, own)
    if not other and options.seed not in (None, record.seed):
        seeds = f"seed {record.seed}, not {options.seed}"
        other = f"a run with {seeds}: leave --seed out, or give this one {own}"
    if other:
        raise UsageError(f"{options.copy_to} holds {other}")


def _other_task(record: RunRecord, options: JobOptions) -> str:
    """Return in words that this is another task of a job array; "" if it is not."""
    task = find_array_task(os.environ)
    if record.script is None or task is None or task.index == record.array_task:
        return ""  # an older holdfast has noted neither
    begun = "" if record.array_task is None else f" of task {record.array_task}"
    own = f"a run directory of its own, as by `--run-dir run-${task.variable}`"
    if _is_named(options):
        way = (
            f"`export {CHAIN}=NAME` goes on with it under this index; another training needs {own}"
        )
    else:
        way = f"give each task {own}; if they are one training in turns, give them one {CHAIN}"
    begun = begun or " of a job outside of arrays"
    return f"the run{begun}, and this is task {task.index} of {task.array}: {way}"


def _other_script(
    record: RunRecord,
    options: JobOptions,
    program: Program,
    own: str = "a run directory of its own by --run-dir, or set that run aside by --fresh",
) -> str:
    """Return in words that the run is another script's, which needs its ``own``; "" if it is not.

    A script that was moved with its run directory has kept its place from there; one that was moved
    alone has kept its text.  So has one in the folder of another release, when a user names the run
    directory.  One file has several paths by links, and by mounts of its file system.
    """
    script, from_here = _places_of(options)
    if record.script in (None, script) or record.script_from_here == from_here:
        return ""
    with contextlib.suppress(OSError):
        if os.path.samefile(record.script, script):
            return ""
    may_be_same = not os.path.exists(record.script) or _is_named(options)
    is_same = may_be_same and record.script_sha256 == program.script_sha256
    if is_same or not os.path.exists(script):
        return ""  # what is not there is refused by itself
    there = shlex.quote(os.path.dirname(record.script))
    link = f"mkdir -p {there} && {shlex.join(['ln', '-sb', script, record.script])}"
    same = f"; if it goes on with that run, `{link}` says so" if may_be_same else ""
    return f"the run of {record.script}: give {script} {own}{same}"


def elsewhere(record: RunRecord, options: JobOptions) -> str:
    """Return the script that has begun the run if that is still there, and another file than ours.

    A run that was not refused goes on with the same text then.
    """
    script, from_here = _places_of(options)
    if record.script is None or record.script_from_here == from_here:
        return ""
    with contextlib.suppress(OSError):
        return "" if os.path.samefile(record.script, script) else record.script
    return ""


def _is_named(options: JobOptions) -> bool:
    """Return whether the user has named the run directory: it is not that of any such script."""
    default = default_run_dir(options.script, Path.cwd())
    return os.path.realpath(options.run_dir) != os.path.realpath(default)


def _places_of(options: JobOptions) -> tuple[str, str]:
    """Return the path of the script without links, and the same from the run directory."""
    script = os.path.realpath(options.script)
    return script, os.path.relpath(script, os.path.realpath(options.run_dir))


def complete_run(options: JobOptions, program: Program) -> str | None:
    """Return what to say of a run for which there is nothing to do; None if its script shall run.

    It does for a user who asks for it, and for one whose wish will be refused.
    """
    directory = RunDirectory(options.run_dir)
    wishes = options.fresh, options.again, options.faults, options.strict
    if any(wishes) or not directory.path.is_dir():
        return None
    job = last_job_in(directory)
    began, ended = last_of(job, JobStarted), last_of(job, JobEnded)
    completed = last_of(job, WorkerCompleted)
    if began is None or ended is None or completed is None:
        return None
    done = completed.event
    is_over = ended.event.exit_code == ExitCode.DONE and done.error is None
    if not is_over or began.event.terms != script_terms(options, program):
        return None
    with contextlib.suppress(JobError, OSError):
        record = directory.load_record()
        is_whole = directory.newest_step == done.step and record is not None
        if is_whole and all(
            getattr(options, name) in (None, getattr(record, name))
            for name in ("seed", "microbatches")
        ):
            return (
                f"nothing to do: the run in {options.run_dir} has completed step {done.step}, "
                f"state sha256 {done.sha256}, and {options.script.name}, its modules, "
                "arguments and options are the same (--again runs it; --fresh trains anew, as on "
                "other data)"
            )
    return None


def _new_record(options: JobOptions, program: Program, threads: int | None) -> RunRecord:
    asked = options.threads, threads, max(1, usable_cores() // options.workers)
    threads = next(number for number in asked if number is not None)
    (script, from_here), task = _places_of(options), find_array_task(os.environ)
    return RunRecord(
        run_id=secrets.token_hex(8),
        format=FORMAT,
        created=time.time(),
        microbatches=options.workers if options.microbatches is None else options.microbatches,
        seed=options.seed or 0,
        threads=threads,
        numerics=to_plain(Numerics.here(threads=threads)),
        script_sha256=program.script_sha256,
        argv=list(options.argv),
        modules=program.modules,
        initial=to_plain(options.initial),
        draw_seed=secrets.token_hex(16),
        script=script,
        script_from_here=from_here,
        array_task=None if task is None else task.index,
    )


def _resumed(options: JobOptions, record: RunRecord) -> RunRecord:
    """Return the terms of an old run under new wishes; only a strict job keeps its microbatches."""
    # Else a run that has begun with one worker could never use another one.
    for name in ("seed", "microbatches") if options.strict else ("seed",):
        wanted, fixed = getattr(options, name), getattr(record, name)
        if wanted not in (None, fixed):
            found = OPTIONS[name]
            raise UsageError(
                f"the run in {options.run_dir} was begun with {name} {fixed}, not {wanted}; "
                f"leave {name} out ({found.flags[-1]}, {found.variable} and holdfast.toml), "
                "begin a new run with --fresh, or choose another --run-dir"
            )
    threads = record.threads if options.threads is None else options.threads
    if options.strict:
        subject = f"the numerics of the run in {options.run_dir} have changed"
        try:
            began = Numerics.from_json(record.numerics)
        except ValueError as error:
            raise UsageError(f"{subject}: {error}") from error
        now = Numerics.of_run(record.numerics, threads=threads)
        refuse_differences(subject, differences(to_plain(began), to_plain(now)))
    parts = record.microbatches if options.microbatches is None else options.microbatches
    return dataclasses.replace(record, threads=threads, microbatches=parts)


_OF_COMPLETE_RUNS = (
    *("argv", "initial"),
    *("fit", "scale_batch", "scale_rate", "accept_batch_mixing"),
)
"""Options by which the script of a complete run may do something else; others need a training."""


def script_terms(options: JobOptions, program: Program) -> str:
    """Return a digest of the program, and of all options that count for a complete run."""
    plain, files = to_plain(options), {**program.modules, "": program.script_sha256 or ""}
    return identity_of(files.items(), *map(plain.get, _OF_COMPLETE_RUNS))[:16]
