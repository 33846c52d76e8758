"""How much of a limited thing is in use, and the control groups that limit this process.

Control groups are files (cgroups(7)).  Version 1 has one tree for each controller, version 2 one
for all.  A limit of any ancestor binds, so all levels count.  ``/proc/self/cgroup`` names a group
by its path below the mount.  Inside a container that may be the path of the host, and then the
mount itself is the container's group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_MOUNT = "sys/fs/cgroup"


class Resource(Enum):
    """A thing that a host runs out of; its value is its name for people."""

    MEMORY = "memory"
    SHARED_MEMORY = "shared memory"
    PROCESSES = "processes and threads"
    FILES = "open files"

    @property
    def is_bytes(self) -> bool:
        """Whether it is counted in bytes."""
        return self in (Resource.MEMORY, Resource.SHARED_MEMORY)


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a resource, and the limit that ``place`` sets to it; bytes or a count."""

    resource: Resource
    place: str
    used: int
    limit: int

    @property
    def share(self) -> float:
        """The used part of the limit."""
        return self.used / self.limit

    @property
    def free(self) -> int:
        """What is left, never below 0."""
        return max(0, self.limit - self.used)


def find_levels(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the directories that bind this process by ``memory``, ``pids`` or ``cpu``.

    Its own group is the first.  ``root`` is that of the file system.
    """
    paths = dict(_parse(read_lines(root / "proc/self/cgroup")))
    # A tree may have several: cpu,cpuacct.
    trees = [t for t in sorted((root / _MOUNT).glob("*")) if controller in t.name.split(",")]
    if controller in paths and trees and trees[0].is_dir():
        return _walk_up(trees[0], paths[controller])
    for mount in (root / _MOUNT, root / _MOUNT / "unified"):
        if (mount / "cgroup.controllers").is_file():
            return _walk_up(mount, paths.get("", "/"))
    return ()


def granted_cores(root: Path = Path("/")) -> float | None:
    """Return the cores that the quotas of this process's control groups grant, None without any."""
    quotas = [_quota(level) for level in find_levels(root, "cpu")]
    return min((quota for quota in quotas if quota), default=None)


def _quota(level: Path) -> float | None:
    """Return the cores that a group has: by ``cpu.max``, or by the two files of version 1."""
    names = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    for files in names:
        words = [word for name in files for word in " ".join(read_lines(level / name)).split()]
        if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):
            return int(words[0]) / int(words[1])
    return None


def read_number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, or it is ``max``."""
    lines = read_lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:  # not of this kernel or this mount, or its group is gone
        return []


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
