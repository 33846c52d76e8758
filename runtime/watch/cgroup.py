"""The control groups of a process, as files: the limits that a container or batch system sets.

A limit of any ancestor binds, so all levels count.  The kernel names a process's groups in
``/proc/self/cgroup`` by paths below the mount.  Inside a container these paths may be those
of the host, and then the mount itself is the container's group.

Version 1 has one tree for each controller, version 2 one for all (cgroups(7)).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
