"""A worker's surroundings: what connects the trainer to the processes around it.

Under ``holdfast run`` the worker's entry makes the context; a script that is
started by itself gets one for a single worker without an agent.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.fault import Fault, FaultKind, FaultPlan, Visit, parse_fault
from holdfast.recovery.world import WorkerId
from holdfast.runtime.communicator import Communicator
from holdfast.runtime.heartbeat import HeartbeatPage
from holdfast.runtime.injector import FaultInjector
from holdfast.runtime.journal import Journal
from holdfast.runtime.local_communicator import LocalCommunicator
from holdfast.runtime.worker_config import WorkerConfig


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Everything outside the training loop that it talks to."""

    config: WorkerConfig
    communicator: Communicator
    journal: Journal
    page: HeartbeatPage
    injector: FaultInjector
    tell_agent: Callable[[dict[str, object]], None]

    @property
    def run_dir(self) -> Path:
        """Where checkpoints and the journal are."""
        return Path(self.config.run_dir)


_current: WorkerContext | None = None


def install(context: WorkerContext) -> None:
    """Make ``context`` that of this process; called once, before the script runs."""
    global _current  # noqa: PLW0603  (one worker is one process)
    _current = context


def current() -> WorkerContext:
    """Return this process's context; a script that runs by itself gets one of its own."""
    if _current is None:
        install(standalone(Path("holdfast-run")))
    assert _current is not None
    return _current


def standalone(run_dir: Path, *, microbatches: int = 1, seed: int = 0) -> WorkerContext:
    """Return a context of one worker without agent, supervisor or MPI."""
    worker = WorkerId(0)
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = WorkerConfig(
        worker=worker,
        generation=1,
        workers=(worker,),
        capacity=1,
        run_id=uuid.uuid4().hex,
        run_dir=str(run_dir),
        microbatches=microbatches,
        seed=seed,
        threads=1,
        heartbeat_timeout_s=10.0,
        script="",
        supervised=False,
    )
    journal = journal_of(config)
    injector = injector_of(config, journal)
    return WorkerContext(
        config, LocalCommunicator(), journal, HeartbeatPage.create(), injector, lambda report: None
    )


def journal_of(config: WorkerConfig) -> Journal:
    """Return the journal of the run, signed by the worker."""
    path = Path(config.run_dir) / "journal.jsonl"
    return Journal(path, run_id=config.run_id, source=f"worker {config.worker}")


def injector_of(config: WorkerConfig, journal: Journal) -> FaultInjector:
    """Return the worker's fault injector; it signs the journal before it strikes."""
    faults: tuple[Fault, ...] = tuple(parse_fault(text) for text in config.faults)

    def announce(visit: Visit, kind: FaultKind) -> None:
        journal.record(
            "fault",
            worker=visit.worker,
            step=visit.step,
            site=visit.site.value,
            attempt=visit.attempt,
            kind=kind.value,
        )

    return FaultInjector(config.worker, FaultPlan(faults), announce)
