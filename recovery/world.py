"""The ordered set of live workers, and the owner of each microbatch of a step.

A world has a generation that tags every message. Two rules make recovery cheap. A new
assignment gives each active worker one run of neighbours, so that a worker's leaves fold into
few subtrees. After a death only orphans move: the results that a survivor has computed for the
step stay its own, and valid.

``adopt`` depends on the assignment that it starts from. So all workers of a world must
start from the same one: the last that the whole world agreed on. An assignment from an
unfinished attempt at repair must not be used.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NewType

WorkerId = NewType("WorkerId", int)

NOBODY = WorkerId(-1)
"""The worker of an event that no worker has told, or whose journal does not name it."""


@dataclass(frozen=True, slots=True)
class World:
    """Workers in rank order; ``capacity`` of them hold microbatches, the rest are spares.

    A world never changes: a death makes a new one with the next generation.
    Worker ids ascend with the rank, because shrinking keeps the order of the
    survivors (MPI 5.0 ULFM chapter, ``MPI_Comm_shrink``).
    """

    generation: int
    workers: tuple[WorkerId, ...]
    capacity: int

    def __post_init__(self) -> None:
        """Refuse worlds that cannot exist."""
        if not self.workers:
            raise ValueError("a world must have at least one worker")
        if list(self.workers) != sorted(set(self.workers)):
            raise ValueError(f"worker ids must ascend without repeats, got {self.workers}")
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")

    @property
    def size(self) -> int:
        """Number of workers, spares included."""
        return len(self.workers)

    @property
    def active(self) -> tuple[WorkerId, ...]:
        """Workers that hold microbatches: the first ``capacity`` in rank order."""
        return self.workers[: self.capacity]

    @property
    def spares(self) -> tuple[WorkerId, ...]:
        """Workers that keep a replica but hold no microbatch yet."""
        return self.workers[self.capacity :]

    def shrunk_to(self, survivors: Collection[WorkerId]) -> World:
        """Return the next generation, which holds only ``survivors``."""
        alive = frozenset(survivors)
        strangers = alive.difference(self.workers)
        if strangers:
            raise ValueError(f"workers {sorted(strangers)} are not in the world {self.workers}")
        kept = tuple(worker for worker in self.workers if worker in alive)
        return World(self.generation + 1, kept, self.capacity)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The owner of each microbatch; the index is the microbatch."""

    owners: tuple[WorkerId, ...]

    def __post_init__(self) -> None:
        """Refuse an assignment of nothing."""
        if not self.owners:
            raise ValueError("an assignment must have at least one microbatch")

    @property
    def microbatches(self) -> int:
        """Number of microbatches of a step."""
        return len(self.owners)

    def owned_by(self, worker: WorkerId) -> tuple[int, ...]:
        """Return the microbatches of ``worker``, ascending; a spare has none."""
        return tuple(index for index, owner in enumerate(self.owners) if owner == worker)


def assign(microbatches: int, world: World) -> Assignment:
    """Give each active worker of ``world`` one run of microbatches, in rank order.

    Runs differ by at most one in length, and the longer ones come first. With fewer
    microbatches than active workers the last workers own nothing.
    """
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1, got {microbatches}")
    size, longer = divmod(microbatches, len(world.active))
    owners: list[WorkerId] = []
    for rank, worker in enumerate(world.active):
        owners.extend([worker] * (size + (rank < longer)))
    return Assignment(tuple(owners))


def adopt(
    assignment: Assignment, world: World, host_of: Mapping[WorkerId, str] = MappingProxyType({})
) -> Assignment:
    """Give the orphans of ``assignment`` to the active workers of ``world`` that own the fewest.

    An orphan is a microbatch whose owner is not active in ``world``. Nothing else
    moves. A spare that has become active owns nothing yet, so it comes first.

    Among equals, workers on the hosts of the dead come first, and take what was left there. So
    a host keeps its subtrees, and fewer vectors leave it. ``host_of`` names the hosts, also
    those of the dead; without it all are on one.
    """
    active = frozenset(world.active)
    owners = list(assignment.owners)
    hosts = {
        index: host_of.get(owner, "") for index, owner in enumerate(owners) if owner not in active
    }
    adopters = _adopters(Counter(owners), world, Counter(hosts.values()), host_of)
    near: dict[str, deque[WorkerId]] = defaultdict(deque)
    for adopter in adopters:
        near[host_of.get(adopter, "")].append(adopter)
    strays = []
    for orphan, host in hosts.items():
        if near[host]:
            owners[orphan] = near[host].popleft()
        else:
            strays.append(orphan)
    for orphan, adopter in zip(strays, sorted(itertools.chain(*near.values())), strict=True):
        owners[orphan] = adopter
    return Assignment(tuple(owners))


def _adopters(
    loads: Mapping[WorkerId, int],
    world: World,
    orphans: Counter[str],
    host_of: Mapping[WorkerId, str],
) -> list[WorkerId]:
    """Return the adopter of each orphan; ``orphans`` counts them by the host that they are from.

    Loads are levelled, but the result is in rank order. So a worker adopts neighbours,
    which fold into fewer subtrees.
    """
    active = world.active
    level, rest = _level([loads[worker] for worker in active], sum(orphans.values()))
    adopted = {worker: max(0, level - loads[worker]) for worker in active}
    wanted = orphans.copy()
    for worker, count in adopted.items():
        wanted[host_of.get(worker, "")] -= count
    lowest = [worker for worker in active if loads[worker] <= level]
    preferred = []
    for worker in lowest:
        host = host_of.get(worker, "")
        if wanted[host] > 0:
            wanted[host] -= 1
            preferred.append(worker)
    chosen = dict.fromkeys([*preferred, *lowest])
    for worker in itertools.islice(chosen, rest):
        adopted[worker] += 1
    return [worker for worker in active for _ in range(adopted[worker])]


def _level(loads: Collection[int], orphans: int) -> tuple[int, int]:
    """Return the load to which all lower ones can be raised, and how many orphans are left then."""
    ordered = sorted(loads)
    for count, (load, above) in enumerate(itertools.pairwise(ordered), start=1):
        room = count * (above - load)
        if room > orphans:
            return load + orphans // count, orphans % count
        orphans -= room
    return ordered[-1] + orphans // len(ordered), orphans % len(ordered)
