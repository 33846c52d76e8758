"""The limits of this host: what they are, how much is in use, and what a job hears of them.

*Limits.*  Memory in use is what the kernel cannot take back by itself: pages of files are no part
of it, because a limit drops them first.  Swap is not counted: a job that swaps is close enough to
its end.  A container or batch system sets limits by control groups (`usage`).

*Victims of the OOM killer.*  The kernel counts one before it sends the SIGKILL
(``__oom_kill_process`` in mm/oom_kill.c).  So a death by SIGKILL that nobody of the job sent, and a
counter that went up, belong together.  A process with much memory takes a while to end, and may
be seen a look later.

*The watch* is asked about each death: one that was the OOM killer's gets its cause.  Its looks
cost well under a thousandth of a core.

Invariant: a file that cannot be read is a limit that is not watched, and never an error.  Each
count of a victim explains one death at most.

Everything is read below a root directory, so tests can make a host of files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from holdfast.recovery.event import WorkerExited
from holdfast.runtime.run.events import Pressure
from holdfast.runtime.run.progress import memory
from holdfast.runtime.system.own_process import (
    Resource,
    Usage,
    find_levels,
    read_lines,
    read_number,
)
from holdfast.runtime.system.processes import count_open_files, count_threads_of_user
from holdfast.runtime.system.witnessed_time import witnessed_s

HOST = "the host"

LOOK_EVERY_S = 2.0
_FULL = 0.9
_ROOMY_AGAIN = 0.8

_VERSIONS = (
    ("memory.current", "memory.max", ("inactive_file", "active_file", "slab_reclaimable")),
    (
        "memory.usage_in_bytes",
        "memory.limit_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Files of versions 2 and 1, and the memory of ``memory.stat`` that a limit drops first."""

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a limit near 2^63 where there is none."""

_OOM_KILLS = ("memory.events.local", "memory.events", "memory.oom_control")
"""Files with a count of victims: of this group alone, with its subgroups, and of version 1."""

_NOT_OURS = "signal SIGKILL"
"""The cause of a death by a SIGKILL that no process of the job has sent."""

_CLAIMED_WITHIN_S = 60.0

_NEEDS: dict[Resource, tuple[int, int]] = {
    Resource.SHARED_MEMORY: (0, 1 << 24),  # Open MPI's btl_sm_segment_size
    Resource.PROCESSES: (12, 6),
    Resource.FILES: (40, 9),
}
"""What the host's processes need by themselves, and for each worker.

Processes and files were counted in jobs of 2, 4 and 8 NumPy workers of one thread.  TensorFlow
starts more threads.
"""

_REMEDIES = {
    Resource.MEMORY: "use fewer workers or smaller microbatches, or raise the limit",
    Resource.SHARED_MEMORY: "use fewer workers, or make room: a larger /dev/shm (docker: "
    "--shm-size), or another TMPDIR",
    Resource.PROCESSES: "use fewer workers, or raise the limit (pids.max, kernel.pid_max)",
    Resource.FILES: "use fewer workers, or raise the limit (ulimit -n)",
}


class HostLimits:
    """Reads limits; what cannot be read is left out.

    Args:
        directory: where the shared memory files of a job lie; it may vanish.
        root: the root of the file system.
        statvfs: tells the size of a file system.
    """

    def __init__(
        self,
        directory: Path,
        root: Path = Path("/"),
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        self._directory = directory
        self._root = root
        self._statvfs = statvfs
        self._memory = find_levels(root, "memory")
        self._pids = find_levels(root, "pids")
        self._vmstat = root / "proc/vmstat"
        self._victims = self._find_victims()

    def memory(self) -> list[Usage]:
        """Return memory in use, of each control group with a limit and of the host."""
        levels = ((level, _memory_of(level)) for level in self._memory)
        found = [Usage(Resource.MEMORY, _name(level), *pair) for level, pair in levels if pair]
        fields = _read_fields(self._root / "proc/meminfo")
        total, free = fields.get("MemTotal", 0), fields.get("MemAvailable")
        if total and free is not None:
            found.append(Usage(Resource.MEMORY, HOST, 1024 * (total - free), 1024 * total))
        return found

    def shared_memory(self) -> list[Usage]:
        """Return the use of the file system of shared memory files."""
        try:
            size = self._statvfs(self._directory.parent)
        except OSError:
            return []
        limit = size.f_blocks * size.f_frsize
        used = limit - size.f_bavail * size.f_frsize
        place = str(self._directory.parent)
        return [Usage(Resource.SHARED_MEMORY, place, used, limit)] if limit else []

    def processes(self) -> list[Usage]:
        """Return the number of processes and threads, of each limited group and of the host."""
        found = []
        for level in self._pids:
            used, limit = read_number(level / "pids.current"), read_number(level / "pids.max")
            if used is not None and limit:
                found.append(Usage(Resource.PROCESSES, _name(level), used, limit))
        return [*found, *self._processes_of_host()]

    def oom_kills(self) -> int | None:
        """Return how many processes the OOM killer has killed so far; None if that is not known."""
        return _read_fields(self._victims).get("oom_kill")

    @property
    def counts_own_kills(self) -> bool:
        """Whether those are of this process's own group, and not of all the host.

        The group of a victim counts it for any reason, also if the whole host had no memory left.
        """
        return self._victims != self._vmstat

    def _find_victims(self) -> Path:
        """Return the file that counts victims; it stays the same, as counts are compared."""
        for level in self._memory:
            for name in _OOM_KILLS:
                if "oom_kill" in _read_fields(level / name):
                    return level / name
        return self._vmstat

    def _processes_of_host(self) -> Iterator[Usage]:
        """Yield the number of threads of the host, of which each has a process id."""
        limits = [
            read_number(self._root / "proc/sys/kernel" / name)
            for name in ("pid_max", "threads-max")
        ]
        known = [limit for limit in limits if limit]
        try:
            used = int((self._root / "proc/loadavg").read_text().split()[3].partition("/")[2])
        except (OSError, ValueError, IndexError):
            return
        if known:
            yield Usage(Resource.PROCESSES, HOST, used, min(known))


def _memory_of(level: Path) -> tuple[int, int] | None:
    """Return used and limit of a control group; None if it has no limit."""
    for used_name, limit_name, reclaimable in _VERSIONS:
        used, limit = read_number(level / used_name), read_number(level / limit_name)
        if used is None or not limit or limit >= _NO_LIMIT_BYTES:
            continue
        fields = _read_fields(level / "memory.stat")
        return max(0, used - sum(fields.get(name, 0) for name in reclaimable)), limit
    return None


def _name(level: Path) -> str:
    return f"the cgroup {level}"


def _read_fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    pairs = (line.split() for line in read_lines(path))
    return {
        words[0].rstrip(":"): int(words[1])
        for words in pairs
        if len(words) > 1 and words[1].isdecimal()
    }


def needed(resource: Resource, workers: int) -> int:
    """Return how much of ``resource`` a launch of ``workers`` takes at least."""
    base, each = _NEEDS[resource]
    return base + each * workers


class HostWatch:
    """Tells which limits are too small before the first launch, and watches memory from then on.

    Args:
        limits: reads them.
        tell: takes events; where memory is full, the launch asks for a checkpoint when it hears.
    """

    def __init__(self, limits: HostLimits, tell: Callable[[Pressure], None]) -> None:
        self._limits = limits
        self._tell = tell
        self._looked_at = float("-inf")
        self._full: set[tuple[Resource, str]] = set()
        """What was told to be above 90 %; it is told again only after it has been below 80 %."""
        self._memory: list[Usage] = []
        self._has_checked = False
        self._kills: int | None = None
        """What the counter of victims showed at the last look."""
        self._unclaimed: list[float] = []
        """When kills were seen that no death was explained with."""

    def begin(self, workers: int) -> None:
        """Take note that a launch begins; the first one is told which limits are too small."""
        self._kills, self._unclaimed = self._limits.oom_kills(), []
        if self._has_checked:
            return
        self._has_checked = True
        usages = [*self._limits.shared_memory(), *self._limits.processes()]
        if files := count_open_files(os.getpid()):
            usages.append(Usage(Resource.FILES, "this host's agent", *files))
        if threads := count_threads_of_user(os.getuid()):
            usages.append(Usage(Resource.PROCESSES, "your user", *threads))
        for usage in usages:
            if usage.free < needed(usage.resource, workers):
                self._say(usage, describe_need(usage, workers))

    def poll(self, now: float, *, has_workers: bool) -> None:
        """Look once, if the last look was long enough ago, and tell what is new."""
        if now - self._looked_at < LOOK_EVERY_S or not has_workers:
            return
        self._looked_at = now
        self._count_kills(now)
        self._memory = self._limits.memory()
        for usage in [*self._memory, *self._limits.shared_memory()]:
            key = usage.resource, usage.place
            if usage.share < _ROOMY_AGAIN:
                self._full.discard(key)
            elif usage.share > _FULL and key not in self._full:
                self._full.add(key)
                self._say(usage, describe_fullness(usage))

    def explained(self, event: WorkerExited) -> WorkerExited:
        """Return the end of a worker; a death by the OOM killer gets its cause and figures."""
        if event.cause != _NOT_OURS:
            return event
        self._count_kills(witnessed_s())
        if not self._unclaimed:
            return event
        self._unclaimed.pop(0)
        limit = min(
            self._memory or self._limits.memory(), key=lambda usage: usage.free, default=None
        )
        is_certain = self._limits.counts_own_kills
        words = describe_oom_kill(limit, event.peak_bytes, is_certain=is_certain)
        return replace(event, cause=words)

    def _count_kills(self, now: float) -> None:
        """Take note of fresh kills; a counter that cannot be read for once tells nothing."""
        count = self._limits.oom_kills()
        if count is None:
            return
        fresh = 0 if self._kills is None else max(0, count - self._kills)
        recent = [at for at in self._unclaimed if now - at <= _CLAIMED_WITHIN_S]
        self._kills, self._unclaimed = count, recent + [now] * fresh

    def _say(self, usage: Usage, text: str) -> None:
        self._tell(Pressure(usage.resource.value, text, usage.place, usage.used, usage.limit))


def describe_fullness(usage: Usage) -> str:
    """Return that a limit of memory is nearly met."""
    used, limit = (describe_amount(usage.resource, amount) for amount in (usage.used, usage.limit))
    return (
        f"{usage.resource.value} of {usage.place}: {used} of {limit} in use; at the limit "
        f"workers die; {_REMEDIES[usage.resource]}; asking for a checkpoint"
    )


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


def describe_amount(resource: Resource, amount: float) -> str:
    """Return an amount with its unit: ``10.2 GiB``, or a plain number."""
    return memory(amount) if resource.is_bytes else f"{amount:.0f}"
