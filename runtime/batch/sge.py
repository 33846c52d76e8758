"""The environment of Sun's and Univa's Grid Engine as an `Allocation`.

Source: qsub(1) and sge_pe(5).  A job that ends with 99 is requeued.  With ``-notify`` a job
gets SIGUSR2 before it is killed.
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

REQUEUE_CODE = 99
_NO_ARRAY = "undefined"


def read(environ: Mapping[str, str], lines: Lines) -> Allocation | None:
    """Return the allocation of a Grid Engine job, None outside it."""
    job = environ.get("JOB_ID")
    if not job or "SGE_TASK_ID" not in environ:
        return None
    index = environ["SGE_TASK_ID"]
    rows = [row.split() for row in lines(environ.get("PE_HOSTFILE", ""))]
    slots = {row[0]: whole_number(row[1]) for row in rows if len(row) > 1}
    return Allocation(
        scheduler=Scheduler.SGE,
        job_id=job if index == _NO_ARRAY else f"{job}.{index}",
        chain=f"sge {job}",
        hosts=tuple(slots),
        workers=_workers(environ, slots),
        restarts=whole_number(environ.get("RESTARTED")),
        is_batch=environ.get("ENVIRONMENT", "BATCH") == "BATCH",
        requeue_code=REQUEUE_CODE,
    )


def _workers(environ: Mapping[str, str], slots: Mapping[str, int]) -> Workers | None:
    if slots:
        return Workers(next(iter(slots.values())), "PE_HOSTFILE")
    count = whole_number(environ.get("NSLOTS"))
    return Workers(count, "NSLOTS") if count else None
