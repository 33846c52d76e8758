"""The limits of this host and of its control groups, with what is in use of them.

Memory in use is what the kernel cannot take back by itself: pages of files are no part of it,
because a limit drops them first.  Swap is not counted: a job that swaps is close enough to its end.

Everything is read below a root directory, so tests can make a host of files.

The control groups of a process, as files: the limits that a container or batch system sets.

A limit of any ancestor binds, so all levels count.  The kernel names a process's groups in
``/proc/self/cgroup`` by paths below the mount.  Inside a container these paths may be those
of the host, and then the mount itself is the container's group.

Version 1 has one tree for each controller, version 2 one for all (cgroups(7)).

Which deaths were the OOM killer's, told from the counters of its victims; pure.

The kernel counts a victim before it sends the SIGKILL (``__oom_kill_process`` in mm/oom_kill.c).
So a death by SIGKILL that nobody of the job sent, and a counter that went up, belong together.  A
process with much memory takes a while to end, and may be seen a look later.

Invariant: each count explains one death at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.runtime.system.usage import Resource, Usage

_MOUNT = "sys/fs/cgroup"


def find_levels(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the directories that bind this process under ``controller``, its own group first.

    Args:
        root: the root of the file system.
        controller: ``memory`` or ``pids``.
    """
    paths = dict(_parse(_lines(root / "proc/self/cgroup")))
    if controller in paths and (root / _MOUNT / controller).is_dir():
        return _walk_up(root / _MOUNT / controller, paths[controller])
    for mount in (root / _MOUNT, root / _MOUNT / "unified"):
        if (mount / "cgroup.controllers").is_file():
            return _walk_up(mount, paths.get("", "/"))
    return ()


def read_number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, or it is ``max``."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def read_fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    pairs = (line.split() for line in _lines(path))
    return {
        words[0].rstrip(":"): int(words[1])
        for words in pairs
        if len(words) > 1 and words[1].isdecimal()
    }


def _parse(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield controller and path; the tree of version 2 has the controller ""."""
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield from ((controller, path) for controller in controllers.split(","))


def _walk_up(mount: Path, path: str) -> tuple[Path, ...]:
    """Return the group and its ancestors, up to the mount."""
    own = mount / path.lstrip("/")
    if ".." in own.parts:
        return (mount,)
    levels = [own, *own.parents]
    return tuple(levels[: levels.index(mount) + 1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not of this kernel or this mount, or its group is gone
        return []


_CLAIMED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class OomWitness:
    """The counter at the last look, and the kills that no death was explained with.

    Args:
        count: what the counter showed at the last look; None before the first one.
    """

    count: int | None = None
    unclaimed: tuple[float, ...] = ()

    def observe(self, count: int | None, now: float) -> OomWitness:
        """Return the witness after the counter has shown ``count`` at ``now``.

        A count that could not be read, None, tells nothing.
        """
        if count is None:
            return self
        before = count if self.count is None else self.count
        fresh = tuple(at for at in self.unclaimed if now - at <= _CLAIMED_WITHIN_S)
        return OomWitness(count, fresh + (now,) * max(0, count - before))

    def claim(self) -> OomWitness | None:
        """Return the witness after one kill has explained a death; None if there is no kill."""
        return replace(self, unclaimed=self.unclaimed[1:]) if self.unclaimed else None


HOST = "the host"

_OOM_KILLS = ("memory.events.local", "memory.events", "memory.oom_control")
"""Files with a count of victims: of this group alone, with its subgroups, and of version 1."""

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a limit near 2^63 where there is none."""


@dataclass(frozen=True, slots=True)
class OomKills:
    """Victims of the OOM killer: those of this process's own group, or all of the host.

    The group of a victim counts it for any reason, also if the whole host had no memory left.
    """

    count: int
    are_ours: bool


class HostLimits:
    """Reads limits; what cannot be read is left out.

    Args:
        directory: where the shared memory files of a job lie.
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
        fields = read_fields(self._root / "proc/meminfo")
        total, free = fields.get("MemTotal", 0), fields.get("MemAvailable")
        if total and free is not None:
            found.append(Usage(Resource.MEMORY, HOST, 1024 * (total - free), 1024 * total))
        return found

    def shared_memory(self) -> list[Usage]:
        """Return the use of the file system of shared memory files."""
        try:
            size = self._statvfs(self._directory)
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

    def oom_kills(self) -> OomKills | None:
        """Return how many processes the OOM killer has killed so far; None if that is not known."""
        count = read_fields(self._victims).get("oom_kill")
        return None if count is None else OomKills(count, are_ours=self._victims != self._vmstat)

    def _find_victims(self) -> Path:
        """Return the file that counts victims; it stays the same, as counts are compared."""
        for level in self._memory:
            for name in _OOM_KILLS:
                if "oom_kill" in read_fields(level / name):
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
        fields = read_fields(level / "memory.stat")
        return max(0, used - sum(fields.get(name, 0) for name in reclaimable)), limit
    return None


_VERSIONS = (
    ("memory.current", "memory.max", ("inactive_file", "active_file", "slab_reclaimable")),
    (
        "memory.usage_in_bytes",
        "memory.limit_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Files of versions 2 and 1, and the memory of ``memory.stat`` that a limit drops first."""


def _name(level: Path) -> str:
    return f"the cgroup {level}"
