"""Which host each worker of a launch lives on, and which host saves.

Workers fill the hosts in the order in which they were named, as with mpiexec: neighbours in rank
order are neighbours in space, so a subtree of the reduction seldom crosses a link.

Each worker has the whole state, so the workers of one host can save all of it.  Memory for a save
and the process that commits it belong to a host.  So those on the host of rank 0 save.  When no
worker of that host is left, rank 0 is on another one, and so are the savers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.recovery.world import WorkerId

MOST_LOSSES = 2
"""A host that was lost so often is left out."""


@dataclass(frozen=True, slots=True)
class HostSlots:
    """A host by its name, and how many workers it takes."""

    name: str
    slots: int

    def __str__(self) -> str:
        """Return it as a user writes it."""
        return f"{self.name}:{self.slots}"


def place_workers(count: int, hosts: Sequence[HostSlots]) -> tuple[str, ...]:
    """Return the name of the host of each of ``count`` workers, in rank order.

    When all slots are taken, the rest goes round the hosts that have any: a launch on the hosts
    that are left may have more workers than slots.

    Raises ``ValueError`` if no host takes a worker.
    """
    takers = [host for host in hosts if host.slots > 0]
    if not takers and count:
        raise ValueError(f"no host takes a worker: {[host.name for host in hosts]}")
    placed = [host.name for host in takers for _ in range(host.slots)]
    order = {host.name: number for number, host in enumerate(takers)}
    for number in range(max(0, count - len(placed))):
        placed.append(takers[number % len(takers)].name)
    return tuple(sorted(placed[:count], key=order.__getitem__))


def usable_hosts(hosts: Sequence[HostSlots], losses: Mapping[str, int]) -> tuple[HostSlots, ...]:
    """Return the hosts that live or may come back; the first one is the head's own and stays.

    ``losses`` tells how often each was lost: one that was lost ``MOST_LOSSES`` times is left out.
    """
    own = hosts[:1]
    return tuple(h for h in hosts if h in own or losses.get(h.name, 0) < MOST_LOSSES)


def total_slots(hosts: Iterable[HostSlots]) -> int:
    """Return how many workers the hosts take."""
    return sum(host.slots for host in hosts)


def savers_among(
    workers: Sequence[WorkerId], host_of: Mapping[WorkerId, str]
) -> tuple[WorkerId, ...]:
    """Return those of ``workers``, which are in rank order, that save together, in that order."""
    return tuple(worker for worker in workers if host_of[worker] == host_of[workers[0]])
