"""One job from its request to its exit code: begun here, in a batch system, or taken over.

``holdfast run`` on the directory of a job that lives without its supervisor goes on with
that job, in place of starting another one.  ``holdfast attach`` does the same by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.runtime.batch.schedulers import CHAIN, Allocation, find_allocation
from holdfast.runtime.errors import ExitCode, RunDirectoryBusy, UsageError
from holdfast.runtime.host.supervisor_link import SOCKET_NAME
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.files import answering
from holdfast.runtime.run.find_run import moved_to, refuse_no_job
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader, completed_step
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.supervisor.agent_process import begin_agent, dismiss_agent
from holdfast.runtime.supervisor.batch_job import BatchJob, ChainLink
from holdfast.runtime.supervisor.job_setup import JobSetup, prepare_job, setup_of_takeover
from holdfast.runtime.supervisor.screen import Paint, say
from holdfast.runtime.supervisor.takeover import StoppedAgentEnded, Takeover, find_takeover
from holdfast.runtime.system.owned_directory import (
    hold,
    make_owned_directory,
    remove_dead_directories,
)
from holdfast.runtime.system.processes import age_s
from holdfast.runtime.system.witnessed_time import Bound, Stillness

if TYPE_CHECKING:
    from holdfast.runtime.supervisor.supervisor import SupervisedJob

_MEMORY = "/dev/shm"
_SEGMENT_BYTES = 1 << 24
"""What Open MPI maps for each rank (``btl_sm_segment_size``)."""

_LEASE_LOOK_S = 1.0


def run_job(
    options: JobOptions,
    batch: BatchJob | None = None,
    link: ChainLink | None = None,
    *,
    paint: Paint | None = None,
) -> ExitCode:
    """Run the job of ``options`` to its end; return the exit code.

    A job that lives in the run directory without its supervisor is taken over.

    Args:
        options: the job.
        batch: the batch job around it, which minds its time.
        link: the incarnation that this is for the batch system.
        paint: colours the live line; None for none.

    Raises:
        JobError: the job cannot begin; nothing was started.
    """
    around = batch or BatchJob.of(options, None, os.environ)
    setup = _prepare(options)
    if isinstance(setup, Takeover):
        return _go_on(setup, options, batch or batch_of(setup), paint)
    try:
        if link is not None:
            around.incarnation = link.begin(setup.record.run_id)
        supervised, begun = _begun(setup, paint)
    except BaseException:
        setup.lease.end()
        raise
    return supervised.run(begun, around)


def _prepare(options: JobOptions) -> JobSetup | Takeover:
    """Return the job that may begin, or the one to take over; wait for its directory if asked to.

    Raises:
        RunDirectoryBusy: another job still has it.
    """
    bound = Bound(options.wait_lease_s)
    watch = Stillness()
    has_said = False
    while True:
        try:
            return prepare_job(options, watch)
        except RunDirectoryBusy as error:
            busy = error
        try:
            takeover = find_takeover(RunDirectory(options.run_dir), asked=options)
            if takeover is not None:
                return takeover
        except RunDirectoryBusy as error:  # it knows more about the owner
            busy = error
        except StoppedAgentEnded as ended:
            say(f"{ended}; going on from its newest checkpoint")
            continue
        if bound.has_passed:
            raise busy
        if not has_said:
            say(f"waiting for {options.wait_lease_s:.0f} s at most: {busy}")
            has_said = True
        time.sleep(_LEASE_LOOK_S)


def _begun(
    setup: JobSetup, paint: Paint | None
) -> tuple[SupervisedJob, subprocess.Popen[bytes] | None]:
    """Return the job with everything that runs it, and its agent, which is starting."""
    removed = remove_dead_directories(_MEMORY, tempfile.gettempdir())
    base = make_owned_directory(_memory_directory(setup.options))
    with contextlib.suppress(OSError):  # a full disk: only nobody could take this job over
        setup.lease.name_agent(base / SOCKET_NAME)
    begun = None
    with contextlib.suppress(OSError):  # nothing to spare: it is tried again
        begun = begin_agent(setup.agent_terms(base, setup.lease), setup.environment)
    try:
        supervised = _supervised(setup, base, paint)  # imports while the pool does
    except BaseException:
        if begun is not None:
            dismiss_agent(begun)
        shutil.rmtree(base, ignore_errors=True)
        raise
    for directory in removed:
        text = f"removed {directory}, which a job that was killed has left in memory"
        supervised.narration.warned(text)
    return supervised, begun


def _supervised(setup: JobSetup, base: Path, paint: Paint | None) -> SupervisedJob:
    """Return the job with everything that runs it; much of it is imported only now."""
    from holdfast.runtime.supervisor.supervisor import SupervisedJob

    return SupervisedJob.of(setup, base, paint)


def _memory_directory(options: JobOptions) -> str | None:
    """Return where shared memory files belong, if the system has such a place with enough room.

    Workers talk through these files alone: without room for them they would wait for ever.
    """
    needed = _SEGMENT_BYTES * (options.workers + options.spares)
    if not os.access(_MEMORY, os.W_OK | os.X_OK) or shutil.disk_usage(_MEMORY).free < needed:
        return None
    return _MEMORY


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


def attach(run_dir: Path, *, paint: Paint | None = None) -> int:
    """Take over the job that lives in ``run_dir`` without its supervisor; return its exit code.

    Its time ends when it would have ended: with its batch job, or ``--deadline`` after its start.

    Raises:
        RunDirectoryBusy: a supervisor runs it.
        UsageError: there is no such job.
    """
    try:
        with answering(run_dir, say):
            refuse_no_job(run_dir)
            is_copy = moved_to(RunDirectory(run_dir)) is not None
            takeover = None if is_copy else find_takeover(RunDirectory(run_dir))
    except StoppedAgentEnded as ended:
        raise UsageError(f"{ended}; go on from its newest checkpoint by `holdfast run`") from ended
    if takeover is None:
        raise UsageError(
            f"no job lives in {run_dir} on this host without its supervisor; {_next(run_dir)}"
        )
    batch = batch_of(takeover)
    return batch.end(_go_on(takeover, None, batch, paint), say)


def _next(run_dir: Path) -> str:
    """Return what there is to do about a run without a job, in words."""
    place = moved_to(RunDirectory(run_dir))
    if place is not None:
        return f"it was moved or copied from {place}, which holds its run as well"
    reader = JournalReader(RunDirectory(run_dir).journal_path, tail_bytes=TAIL_BYTES)
    step = None
    with contextlib.suppress(OSError):  # it may not be there
        step = completed_step(reader.read())
    if step is None:
        return "start or resume it with `holdfast run`"
    return f"the last one completed step {step}: look at it with `holdfast report {run_dir}`"


def batch_of(takeover: Takeover) -> BatchJob:
    """Return the batch job that the job was started in; this process may be outside of it."""
    environ = takeover.environment
    age = age_s(takeover.agent.pid)
    return BatchJob.of(takeover.config.options, find_allocation(environ), environ, age)


def _go_on(
    takeover: Takeover, asked: JobOptions | None, batch: BatchJob, paint: Paint | None
) -> ExitCode:
    setup = setup_of_takeover(takeover, asked)
    with contextlib.suppress(OSError):  # a full disk: only `holdfast save` does not find us
        setup.lease.name_owner()
    with contextlib.suppress(OSError):  # nothing to spare: the agent renews it, too
        setup.lease.keep()
    hold(takeover.directory)
    return _supervised(setup, takeover.directory, paint).run(takeover, batch)
