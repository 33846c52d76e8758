"""LSF's environment as an `Allocation`.

Source: *Environment variables* of IBM Spectrum LSF.  At its run limit LSF sends SIGUSR2.
``bsub -Q 75`` has a job requeued that ends with our code for "stopped early".
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

REQUEUE_CODE = 75


def read(environ: Mapping[str, str], lines: Lines) -> Allocation | None:
    """Return the allocation of an LSF job, None outside LSF."""
    del lines  # everything is in the environment
    job = environ.get("LSB_JOBID")
    if not job:
        return None
    index = environ.get("LSB_JOBINDEX", "0")
    slots = _slots(environ)
    return Allocation(
        scheduler=Scheduler.LSF,
        job_id=job if index == "0" else f"{job}[{index}]",
        chain=f"lsf {job}",
        hosts=tuple(slots),
        workers=next((Workers(count, source) for count, source in slots.values()), None),
        restarts=int(environ.get("LSB_RESTART") == "Y"),
        is_batch=environ.get("LSB_INTERACTIVE") != "Y",
        requeue_code=REQUEUE_CODE,
    )


def _slots(environ: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Return the slots of each host, the first host first, and the variable that tells them."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if words:
        counts = map(whole_number, words[1::2])
        return {host: (n, "LSB_MCPU_HOSTS") for host, n in zip(words[::2], counts, strict=False)}
    hosts = environ.get("LSB_HOSTS", "").split()
    return {host: (hosts.count(host), "LSB_HOSTS") for host in hosts}
