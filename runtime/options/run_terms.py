"""The terms of a run: what its record fixes, and what a job of it may still wish.

The client and a script that is started by itself take the run's record here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path

from holdfast.checkpoint.signature import KeyFile
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.run.find_run import refuse_local_directory, refuse_other_key
from holdfast.runtime.run.journal import has_step
from holdfast.runtime.run.numerics import Numerics, differences, refuse_differences
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.codec import to_plain


def open_or_create_record(
    directory: RunDirectory,
    options: JobOptions,
    key_file: KeyFile | None,
    threads: int | None = None,
) -> tuple[RunRecord, bool]:
    """Return the record of the run in ``directory``, and whether there was one before.

    ``threads`` are those that each worker of a new run can have on all of several hosts.  The
    threads are those of this job: they may change from job to job.  A run without a step takes
    the script and the options as they are: a first start that failed has fixed nothing.

    Raises:
        UsageError: the options or the key are not those that the run was begun with, or
            there are checkpoints without the record of their run.
    """
    resumed = _terms_in(directory, options, key_file, threads)
    if resumed is not None:
        if resumed != directory.load_record() and not _has_begun(directory, options):
            directory.replace_record(resumed)
        return resumed, True
    record = _new_record(options, key_file, threads)
    directory.create_record(record)
    return record, False


def refuse_beforehand(
    directory: RunDirectory, options: JobOptions, key_file: KeyFile | None
) -> None:
    """Refuse a job while it has changed nothing, if the directory shows that it must be refused.

    A lease that it took would end the saves of a job that has made its directory again.  Where
    there is a lease, its owner comes first: that job may be one to wait for, or to take over.

    Raises:
        UsageError: what ``open_or_create_record`` raises, or it is the local directory of a run.
    """
    refuse_local_directory(directory.path)
    if not options.fresh and not os.path.lexists(directory.lease_path):
        _terms_in(directory, options, key_file)


def _terms_in(
    directory: RunDirectory,
    options: JobOptions,
    key_file: KeyFile | None,
    threads: int | None = None,
) -> RunRecord | None:
    """Return the terms of the run in ``directory`` under the wishes of this job, None without."""
    before = directory.load_record()
    if before is not None:
        refuse_other_key(key_file, before.key_id, directory.path)
        if _has_begun(directory, options):
            return _resumed(options, before)
        return dataclasses.replace(
            _new_record(options, key_file, threads),
            run_id=before.run_id,
            created=before.created,
            draw_seed=before.draw_seed,
        )
    if directory.has_checkpoints:
        raise UsageError(
            f"{directory.path} holds checkpoints but no RUN.json, which tells their run; "
            "restore RUN.json, or set the checkpoints aside with --fresh"
        )
    return None


def _has_begun(directory: RunDirectory, options: JobOptions) -> bool:
    """Return whether the run has trained a step, here or for a mirror; True if nobody can tell."""
    if directory.has_checkpoints or options.repair_from is not None:
        return True
    try:
        return has_step(directory.journal_path)
    except OSError:
        return True


def _new_record(options: JobOptions, key_file: KeyFile | None, threads: int | None) -> RunRecord:
    if threads is None or options.threads is not None:
        threads = options.new_threads
    return RunRecord(
        run_id=RunRecord.new_id(),
        format=FORMAT,
        created=time.time(),
        microbatches=options.new_microbatches,
        seed=options.new_seed,
        threads=threads,
        numerics=to_plain(Numerics.here(threads=threads)),
        key_id=key_file.key_id if key_file else None,
        script_sha256=script_sha256(options.script),
        argv=list(options.argv),
        draw_seed=RunRecord.new_draw_seed(),
    )


def script_sha256(script: Path) -> str | None:
    """Return the digest of a script's text, None if it cannot be read."""
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:
        return None


def _resumed(options: JobOptions, record: RunRecord) -> RunRecord:
    """Return the terms of an old run under new wishes; what fixes the bytes may not change."""
    for name, wanted, fixed in (
        ("microbatches", options.microbatches, record.microbatches),
        ("seed", options.seed, record.seed),
    ):
        if wanted is not None and wanted != fixed:
            found = OPTIONS[name]
            raise UsageError(
                f"the run in {options.run_dir} was begun with {name} {fixed}, not {wanted}; "
                f"leave {name} out ({found.flags[-1]}, {found.variable} and holdfast.toml), "
                "begin a new run with --fresh, or choose another --run-dir"
            )
    threads = record.threads if options.threads is None else options.threads
    if options.strict:
        _refuse_other_numerics(options, record, threads)
    return dataclasses.replace(record, threads=threads)


def _refuse_other_numerics(options: JobOptions, record: RunRecord, threads: int) -> None:
    subject = f"the numerics of the run in {options.run_dir} have changed"
    try:
        began = Numerics.from_json(record.numerics)
    except ValueError as error:
        raise UsageError(f"{subject}: {error}") from error
    refuse_differences(subject, differences(began, Numerics.here(threads=threads)))


_OF_COMPLETE_RUNS = (
    *("script", "argv", "run_dir", "initial", "key_file", "local_dir", "trains"),
    *("fit", "scale_batch", "scale_rate", "accept_batch_mixing"),
)
"""Options by which the script of a complete run may do something else; others need a training."""


def script_terms(options: JobOptions, cwd: Path) -> str:
    """Return a digest of all that decides what the script of a complete run does, but its files."""
    plain = to_plain(options)
    text = json.dumps([[plain[name] for name in _OF_COMPLETE_RUNS], str(cwd)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
