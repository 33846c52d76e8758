"""Hosts and their slots, as users write them: in an option, or in a hostfile.

A hostfile is that of Open MPI and Horovod: a host a line, with ``slots=4``, with ``:4``, or alone
for one slot.  A host that stands in several lines has the slots of all, as in the node files of
PBS.  ``max_slots`` limits how many workers Open MPI would put on a host beyond its slots.  Here a
host takes no more than its slots, and no more than that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.recovery.placement import HostSlots

_SLOTS, _MOST = "slots", "max_slots"


def read_hosts(value: Any) -> tuple[HostSlots, ...]:
    """Return hosts and their slots of ``a:4,b:4``, or of a list of such words; alone it is one."""
    words = value if isinstance(value, (list, tuple)) else str(value).split(",")
    hosts = tuple(_read_host(str(word).strip()) for word in words if str(word).strip())
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]} stands there {names.count(twice[0])} times; name it once")
    return hosts


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Return the hosts of a file and their slots, in its order.

    Raises:
        ValueError: it cannot be read, has no host, or a line of it is no host.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                host = _read_line(words)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
            slots[host.name] = slots.get(host.name, 0) + host.slots
    if not slots:
        raise ValueError(f"{path} names no host; write one a line, such as `node1 slots=4`")
    return tuple(HostSlots(name, count) for name, count in slots.items())


def _read_line(words: list[str]) -> HostSlots:
    host = _read_host(words[0])
    given = dict(word.replace("max-slots", _MOST).partition("=")[::2] for word in words[1:])
    if not set(given) <= {_SLOTS, _MOST} or not all(map(str.isdecimal, given.values())):
        raise ValueError(f"{' '.join(words)!r} is no host with its slots, such as node1 slots=4")
    slots = int(given.get(_SLOTS, host.slots))
    return HostSlots(host.name, min(slots, int(given.get(_MOST, slots))))


def _read_host(word: str) -> HostSlots:
    name, _, slots = word.partition(":")
    if not name or name[0] in "-+^" or (slots and not slots.isdecimal()):
        raise ValueError(f"{word!r} is no host with its number of workers, such as node1:4")
    return HostSlots(name, int(slots or 1))
