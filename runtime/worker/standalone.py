"""A script without a launcher: plain ``python train.py``, or ``mpiexec … python train.py``.

Without an agent there is no fencing, no warm start and no relaunch.
What MPI itself allows still works: survivors of a death by signal go on in
place, checkpoints are made, and running the script again resumes it.

Each worker holds the lease of the run directory, and renews it where no locks are.  So the
directory stays this job's as long as one of them lives.  Nobody takes the orders of
``holdfast save``.

Options stand in the environment or in ``holdfast.toml``, as for ``holdfast run``; the
workers are those of MPI.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

from holdfast.recovery.world import WorkerId
from holdfast.runtime import errors
from holdfast.runtime.batch.schedulers import find_allocation, refuse_copies
from holdfast.runtime.errors import (
    Ending,
    JobError,
    ProgramError,
    RunDirectoryBusy,
    UsageError,
    exit_code_of,
)
from holdfast.runtime.exchange.communicator import Communicator, LocalCommunicator
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.run_terms import open_or_create_record, refuse_beforehand
from holdfast.runtime.options.sources import (
    CONFIG_FILE,
    Sources,
    build_options,
    keys_of,
    read_config_file,
    refuse_unknown,
)
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.journal import next_generation
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.progress import LIVE, SILENT, EndedEpoch
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.codec import encode, from_plain
from holdfast.runtime.system.witnessed_time import Bound, Stillness
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker.context import WorkerContext, failure, injector_of, journal_of

_LAUNCHED_BY_MPI = "OMPI_COMM_WORLD_SIZE"
_LEASE_LOOK_S = 1.0

_lease: Lease | None = None


def standalone() -> WorkerContext:
    """Return the context of a worker that has no agent."""
    if "ipykernel" in sys.modules:
        raise UsageError(
            "a notebook has no script that workers could run: write it to a file "
            "(%%writefile train.py), and start that: !holdfast run -n 4 train.py"
        )
    is_mpi = _LAUNCHED_BY_MPI in os.environ
    sys.excepthook = _die_with_words(is_mpi=is_mpi)
    allocation = find_allocation(os.environ)
    if allocation is not None and not is_mpi:
        refuse_copies(allocation)  # srun starts no MPI of ours
    communicator = _join() if is_mpi else LocalCommunicator()
    config = _agreed_config(communicator)
    journal = journal_of(config)
    if not is_mpi:
        atexit.register(_end_lease)  # the last of all
    # Both come before the end by agreement, as that was registered first.
    atexit.register(journal.close)
    atexit.register(_die_of_caught_failure)
    injector = injector_of(config, journal)
    page = WorkerStatus.create()
    tell = functools.partial(_tell, is_quiet=config.options.quiet)
    return WorkerContext(config, communicator, journal, page, injector, tell)


def _join() -> Communicator:
    """Initialise MPI, and leave by agreement when the script ends."""
    from holdfast.runtime.exchange.mpi_communicator import join_world

    communicator = join_world(shrinkable=True)
    atexit.register(_leave, communicator)
    return communicator


def _leave(communicator: Communicator) -> None:
    """Go when all go; MPI's own finalisers may hang after failures."""
    communicator.leave()
    _end_lease()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with_words(*, is_mpi: bool) -> Callable[..., None]:
    """Return what ends a script that raised: under MPI by the one death that survivors see."""

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, (JobError, Ending)):
            sys.stderr.write(f"holdfast: error: {error}\n")
        else:
            sys.__excepthook__(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        if is_mpi:
            os.kill(os.getpid(), signal.SIGKILL)
        _end_lease()
        os._exit(exit_code_of(error))

    return end


def _die_of_caught_failure() -> None:
    """Let no script claim success that has caught the error of its training."""
    error = failure()
    if error is not None:
        sys.excepthook(type(error), error, error.__traceback__)


def _agreed_config(communicator: Communicator) -> WorkerConfig:
    """Return the configuration of this worker, on the terms that rank 0 finds or makes.

    Every rank refuses what rank 0 refuses.  Otherwise a script that goes on after the error
    would leave the other ranks waiting for rank 0.

    Raises:
        JobError: rank 0 has refused the job, or the run directory was taken meanwhile.
    """
    if communicator.rank > 0:
        said = json.loads(communicator.allgather_bytes(b"")[0])
        if "refused" in said:
            raise getattr(errors, said["kind"], ProgramError)(said["refused"])
        config = from_plain(WorkerConfig, said["config"])
        _hold(RunDirectory(config.run_dir).join_lease(config.lease_token))
        return dataclasses.replace(config, worker=WorkerId(communicator.rank))
    try:
        config = _first_config(communicator.size)
    except Exception as error:
        refused = {"refused": str(error), "kind": type(error).__name__}
        communicator.allgather_bytes(encode(refused))
        raise
    communicator.allgather_bytes(encode({"config": config}))
    return config


def _first_config(size: int) -> WorkerConfig:
    """Return what rank 0 runs on: the run's record, created if need be, and a new generation."""
    options = _options(size)
    directory = RunDirectory(options.run_dir)
    refuse_beforehand(directory, options)
    directory.prepare()
    lease = _acquire(directory, options.wait_lease_s)
    _hold(lease)
    if options.fresh:
        directory.set_aside()
    record, _ = open_or_create_record(directory, options)
    config = WorkerConfig(
        options=options,
        worker=WorkerId(0),
        generation=next_generation(directory),
        workers=tuple(WorkerId(rank) for rank in range(size)),
        record=record,
        history=HistoryReader(directory.journal_path).read(),
        lease_token=lease.token,
    )
    if size > 1:
        directory.share_lease(lease)  # it must outlive this rank if others do
    return config


def _options(workers: int) -> JobOptions:
    """Return the options of the script that runs here."""
    here = Path.cwd()
    table = read_config_file(here / CONFIG_FILE).get(RUN, {})
    refuse_unknown(CONFIG_FILE, RUN, table, keys_of(RUN))
    sources = Sources({"workers": workers}, os.environ, table, here)
    return build_options(Path(sys.argv[0]), tuple(sys.argv[1:]), sources).options


def _acquire(directory: RunDirectory, wait_s: float) -> Lease:
    """Take the lease of the run directory; wait for it if that was asked for.

    Raises:
        RunDirectoryBusy: another job still has it.
    """
    bound = Bound(wait_s)
    watch = Stillness()
    has_said = False
    while True:
        try:
            return directory.acquire_lease(takes_orders=False, watch=watch)
        except RunDirectoryBusy as error:
            if bound.has_passed:
                raise
            if not has_said:
                _write(sys.stderr, f"holdfast: waiting for {wait_s:.0f} s at most: {error}")
                has_said = True
        time.sleep(_LEASE_LOOK_S)


def _hold(lease: Lease) -> None:
    """Keep other jobs out of the run directory for as long as this process lives."""
    global _lease  # noqa: PLW0603  (one process is one worker)
    _lease = lease


def _end_lease() -> None:
    """Say in the lease that the job has ended, which all of its workers have agreed on."""
    if _lease is not None:
        _lease.end()


def _tell(report: Mapping[str, object], *, is_quiet: bool = False) -> None:
    """Say each epoch and the end of the training, as ``holdfast run`` does, unless ``is_quiet``.

    Trouble with the run's checkpoints is said to the quiet as well; all else is in the journal.
    """
    if report.get("is_trouble"):
        _write(sys.stderr, f"holdfast: {report['text']}")
    if is_quiet:
        return
    if report["kind"] == "complete" and report["is_first"]:
        text = f"holdfast: completed step {report['step']}, state sha256 {report['sha256']}"
        _write(sys.stderr, text)
    elif report["kind"] == "epoch" and report.get("verbose", LIVE) != SILENT:
        epoch = EndedEpoch.of(report)
        if epoch is not None:
            _write(sys.stdout, epoch.line)


def _write(stream: TextIO | None, line: str) -> None:
    with contextlib.suppress(OSError):  # a stream that takes nothing ends no job
        if stream is not None:
            stream.write(f"{line}\n")
