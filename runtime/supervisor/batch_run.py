"""A job inside a batch system, from its request to the exit code that the batch system sees."""

from __future__ import annotations

import os

from holdfast.runtime.batch.allocation import Allocation
from holdfast.runtime.batch.finding import CHAIN
from holdfast.runtime.errors import ExitCode, RunDirectoryBusy
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.answering import answering
from holdfast.runtime.supervisor.batch_job import BatchJob
from holdfast.runtime.supervisor.chain_link import ChainLink
from holdfast.runtime.supervisor.job_run import run_job
from holdfast.runtime.supervisor.progress_log import Paint
from holdfast.runtime.supervisor.screen import say


def run_batch_job(options: JobOptions, allocation: Allocation, paint: Paint | None = None) -> int:
    """Run one incarnation of a run in a batch system; return the exit code.

    ``paint`` colours the live line of a job that a person has started by hand.

    Raises:
        JobError: the job cannot begin, or its chain does not get on; nothing was started.
    """
    if not allocation.chain:
        return run_job(options, BatchJob.of(options, allocation, os.environ), paint=paint)
    with answering(options.run_dir, say):
        link = ChainLink(options, allocation)
    if link.is_complete:
        say(f"the run in {options.run_dir} is complete: {allocation.label} has nothing to do")
        return ExitCode.DONE
    asked = link.asked(options)
    if asked != options:
        say("--fresh began this run with the first incarnation; this one goes on with it")
    batch = BatchJob.of(asked, allocation, os.environ)
    try:
        code = run_job(asked, batch, link)
    except RunDirectoryBusy as error:
        if CHAIN not in os.environ:
            raise
        say(f"{error}; {allocation.label} leaves it alone")
        return error.exit_code
    if code == ExitCode.DONE:
        link.completed()
    return batch.end(code, say)
