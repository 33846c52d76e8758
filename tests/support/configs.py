"""Configurations of workers that tests make by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.worker.injector import FaultInjector


def worker_config(
    worker: int = 0,
    workers: Sequence[int] = (0,),
    *,
    run_dir: Path = Path("/run"),
    run_id: str = "r",
    generation: int = 1,
    microbatches: int = 1,
    seed: int = 0,
    capacity: int | None = None,
    hosts: Sequence[str] = (),
    **options: Any,
) -> WorkerConfig:
    """Return the configuration of one worker of a job with the given ``options``."""
    wishes = {
        "workers": capacity or len(workers),
        "heartbeat_timeout_s": 1.0,
        "script": Path("train.py"),
    }
    return WorkerConfig(
        options=JobOptions(run_dir=run_dir, **(wishes | options)),
        worker=WorkerId(worker),
        generation=generation,
        workers=tuple(map(WorkerId, workers)),
        record=RunRecord(run_id, FORMAT, 0.0, microbatches, seed, threads=1),
        hosts=tuple(hosts),
    )


def without_faults(config: WorkerConfig) -> FaultInjector:
    """Return an injector that never strikes."""
    return FaultInjector(
        config.worker, {}, announce=lambda visit, kind: None, strike=lambda kind: None
    )


def journal_of(config: WorkerConfig) -> Journal:
    """Return a journal in the run's own file, for the records of a worker without an agent."""
    path = RunDirectory(config.options.run_dir).journal_path
    return Journal(path, run_id=config.record.run_id, source=f"worker {config.worker}")


def gives_nothing(question: dict[str, object]) -> dict[str, Any]:
    """Answer a worker as an agent does that has no memory for its saves."""
    return {}
