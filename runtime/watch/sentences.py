"""What people are told of limits: one sentence each, with figures; pure."""

from __future__ import annotations

from holdfast.runtime.watch.memory_forecast import Growth
from holdfast.runtime.watch.start_check import needed
from holdfast.runtime.watch.usage import Resource, Usage

_REMEDIES = {
    Resource.MEMORY: "use fewer workers or smaller microbatches, or raise the limit",
    Resource.SHARED_MEMORY: "use fewer workers, or make room: a larger /dev/shm (docker: "
    "--shm-size), or another TMPDIR",
    Resource.PROCESSES: "use fewer workers, or raise the limit (pids.max, kernel.pid_max)",
    Resource.FILES: "use fewer workers, or raise the limit (ulimit -n)",
}


def describe_amount(resource: Resource, amount: float) -> str:
    """Return an amount with its unit: ``10.2 GiB``, or a plain number."""
    if not resource.is_bytes:
        return f"{amount:.0f}"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if amount >= size:
            return f"{amount / size:.{1 if amount < 100 * size else 0}f} {unit}"
    return f"{amount / 1024:.0f} KiB"


def describe_time(seconds: float) -> str:
    """Return about how long it takes: ``20 seconds``, ``15 minutes``."""
    if seconds < 100:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes"


def describe_growth(usage: Usage, growth: Growth, largest: tuple[int, int] | None) -> str:
    """Return that a limit is about to be met.

    Args:
        usage: the use and its limit.
        growth: how fast it grows.
        largest: the worker that has grown most, and its resident bytes.
    """
    who = ""
    if largest is not None:
        worker, resident = largest
        size = describe_amount(Resource.MEMORY, resident)
        who = f"; worker {worker} has grown most, to {size}"
    return (
        f"{_state(usage)}, {describe_amount(usage.resource, 60 * growth.per_s)} more each minute; "
        f"the limit is met in about {describe_time(growth.left_s)}{who}; asking for a checkpoint"
    )


def describe_fullness(usage: Usage) -> str:
    """Return that a limit is nearly met."""
    return f"{_state(usage)}; at the limit workers die; {_REMEDIES[usage.resource]}"


def describe_need(usage: Usage, workers: int) -> str:
    """Return that a limit is too small for the workers that are about to start."""
    resource = usage.resource
    who = "1 worker needs" if workers == 1 else f"{workers} workers need"
    amount = describe_amount(resource, needed(resource, workers))
    unit = " of" if resource.is_bytes else ""
    free, limit = (describe_amount(resource, size) for size in (usage.free, usage.limit))
    return (
        f"{who} about {amount}{unit} {resource.value}, and {free} of {limit} are free "
        f"({usage.place}): {_REMEDIES[resource]}"
    )


def describe_oom_kill(limit: Usage | None, resident: int | None, *, is_certain: bool) -> str:
    """Return the cause of a death by the OOM killer.

    Args:
        limit: the memory that was closest to its limit, if it is known.
        resident: the most bytes that the process had in memory, if they are known.
        is_certain: whether the process's own control group counted the kill.
    """
    verb = "killed" if is_certain else "probably killed"
    figures = []
    if resident is not None:
        figures.append(f"it had {describe_amount(Resource.MEMORY, resident)} resident")
    if limit is not None:
        size = describe_amount(Resource.MEMORY, limit.limit)
        figures.append(f"{limit.place} has {size}")
    return f"out of memory: {verb} by the kernel's OOM killer" + "".join(
        f", {figure}" for figure in figures
    )


def _state(usage: Usage) -> str:
    used, limit = (describe_amount(usage.resource, amount) for amount in (usage.used, usage.limit))
    return f"{usage.resource.value} of {usage.place}: {used} of {limit} in use"
