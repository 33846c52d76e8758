"""The environment of PBS Professional, OpenPBS and Torque as an `Allocation`.

Sources: qsub(1B) of each.  Only Torque tells the time limit.  No exit code has a job
requeued: ``qrerun`` is for operators, so a run goes on in a further job.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.runtime.batch.allocation import (
    Allocation,
    Lines,
    Scheduler,
    Workers,
    whole_number,
)


def read(environ: Mapping[str, str], lines: Lines) -> Allocation | None:
    """Return the allocation of a PBS job, None outside PBS."""
    job = environ.get("PBS_JOBID")
    if not job:
        return None
    slots = lines(environ.get("PBS_NODEFILE", ""))
    hosts = tuple(dict.fromkeys(slots))
    # The file has a line for each slot, and begins with the host of the batch script.
    workers = Workers(slots.count(hosts[0]), "PBS_NODEFILE") if hosts else None
    return Allocation(
        scheduler=Scheduler.PBS,
        job_id=job,
        chain=f"pbs {job}",
        hosts=hosts,
        workers=workers,
        is_batch=environ.get("PBS_ENVIRONMENT") == "PBS_BATCH",
    )


def time_limit_s(environ: Mapping[str, str]) -> float | None:
    """Return the seconds that a Torque job may last, None if it does not say."""
    return float(whole_number(environ.get("PBS_WALLTIME"))) or None
