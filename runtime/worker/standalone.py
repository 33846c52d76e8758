"""A script that nobody launched: plain ``python train.py``, or ``mpiexec … python train.py``.

Without supervisor and agent there is no fencing, no warm start and no relaunch.
What MPI itself allows still works: survivors of a death by signal go on in
place, checkpoints are made, and running the script again resumes it.

``HOLDFAST_RUN_DIR``, ``HOLDFAST_MICROBATCHES``, ``HOLDFAST_SEED``,
``HOLDFAST_THREADS``, ``HOLDFAST_SAVE_EVERY``, ``HOLDFAST_INITIAL``,
``HOLDFAST_REPAIR_FROM`` and ``HOLDFAST_KEY_FILE`` stand for the options of
``holdfast run``.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.exchange.local_communicator import LocalCommunicator
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.journal import last_generation
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.run.run_key import find_key, refuse_other_key
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.worker.context import WorkerContext, injector_of, journal_of

_LAUNCHED_BY_MPI = "OMPI_COMM_WORLD_SIZE"


def standalone() -> WorkerContext:
    """Return the context of a worker that has neither supervisor nor agent."""
    is_mpi = _LAUNCHED_BY_MPI in os.environ
    sys.excepthook = _die_with_words(is_mpi=is_mpi)
    communicator = _join() if is_mpi else LocalCommunicator()
    directory = RunDirectory(Path(os.environ.get("HOLDFAST_RUN_DIR", "holdfast-run")).absolute())
    key_file = find_key(_path("HOLDFAST_KEY_FILE"), directory.path)
    terms = _agreed_terms(communicator, directory, key_file)
    record = RunRecord.decode(json.dumps(terms["record"]).encode())
    config = WorkerConfig(
        worker=WorkerId(communicator.rank),
        generation=int(terms["generation"]),
        workers=tuple(WorkerId(rank) for rank in range(communicator.size)),
        capacity=communicator.size,
        run_id=record.run_id,
        run_dir=str(directory.path),
        microbatches=record.microbatches,
        seed=record.seed,
        threads=record.threads,
        heartbeat_timeout_s=float("inf"),
        script=sys.argv[0],
        save_every=os.environ.get("HOLDFAST_SAVE_EVERY"),
        repair_from=os.environ.get("HOLDFAST_REPAIR_FROM"),
        initial=os.environ.get("HOLDFAST_INITIAL") or None,
        key_file=key_file,
    )
    journal = journal_of(config)
    injector = injector_of(config, journal)
    page = HeartbeatPage.create()
    return WorkerContext(config, communicator, journal, page, injector, lambda report: None)


def _join() -> Communicator:
    """Initialise MPI, and leave by agreement when the script ends."""
    from holdfast.runtime.exchange.mpi_communicator import join_world

    communicator = join_world(shrinkable=True)
    atexit.register(_leave, communicator)
    return communicator


def _leave(communicator: Communicator) -> None:
    """Go when all go; MPI's own finalisers may hang after failures."""
    communicator.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with_words(*, is_mpi: bool) -> Callable[..., None]:
    """Return what ends a script that raised: under MPI by the one death that survivors see."""

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, JobError):
            sys.stderr.write(f"holdfast: error: {error}\n")
        else:
            sys.__excepthook__(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        if is_mpi:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(error.exit_code if isinstance(error, JobError) else ExitCode.PROGRAM_FAILED)

    return end


def _agreed_terms(
    communicator: Communicator, directory: RunDirectory, key_file: KeyFile | None
) -> dict[str, Any]:
    """Return the terms that rank 0 finds or makes."""
    mine = b""
    if communicator.rank == 0:
        mine = json.dumps(_terms(directory, communicator.size, key_file)).encode()
    terms = json.loads(communicator.allgather_bytes(mine)[0])
    assert isinstance(terms, dict)
    return terms


def _terms(directory: RunDirectory, size: int, key_file: KeyFile | None) -> dict[str, object]:
    """Return the run's record, created if need be, and the generation to begin with."""
    directory.prepare()
    record = directory.load_record()
    if record is None:
        threads = _whole_number("HOLDFAST_THREADS", 1)
        record = RunRecord(
            run_id=RunRecord.new_id(),
            format=FORMAT,
            created=time.time(),
            microbatches=_whole_number("HOLDFAST_MICROBATCHES", size),
            seed=_whole_number("HOLDFAST_SEED", 0),
            threads=threads,
            numerics=Numerics.here(threads=threads).to_json(),
            key_id=key_file.key_id if key_file else None,
        )
        directory.create_record(record)
    refuse_other_key(key_file, record.key_id, directory.path)
    generation = last_generation(directory.journal_path) + 1
    return {"record": json.loads(record.encode()), "generation": generation}


def _path(name: str) -> Path | None:
    text = os.environ.get(name)
    return Path(text).absolute() if text else None


def _whole_number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise UsageError(f"{name} must be a whole number, got {text!r}")
    return int(text)
