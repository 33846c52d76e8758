"""Configurations of workers that tests make by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.recovery.fault import FaultPlan
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import FORMAT, RunRecord
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
        config.worker, FaultPlan(), announce=lambda visit, kind: None, strike=lambda kind: None
    )
