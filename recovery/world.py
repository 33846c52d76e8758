"""The ordered set of live workers, and the owner of each microbatch of a step.

A world has a generation that tags every message. Two rules make recovery cheap. A new
assignment gives each active worker one run of neighbours, so that a worker's leaves fold into
few subtrees. After a death only orphans move: the results that a survivor has computed for the
step stay its own, and valid.

``adopt`` depends on the assignment that it starts from. So all workers of a world must
start from the same one: the last that the whole world agreed on. An assignment from an
unfinished attempt at repair must not be used.

*After a break* MPI lets each side of a cut shrink to a world of its own, and each takes the
other one for dead.  A worker cannot know on which side it is.  So survivors only *propose* a world:
they shrink, agree on their members, and the first of them asks the head.  The head names worlds one
after the other, each from members of the last one.  Before its word has come, a world applies
nothing, runs no line of the script and saves nothing.  A side that does not reach the head gets no
word: its workers wait, and end with the lease of their host.

Invariant: *at most one world of a generation ever applies.*

- The first world of a launch is named by the order to launch.  Each other one is named here and has
  the next number, so a number has one set of members.  The same members get the same number.
- A world that is named has no member that the last one lacks.  So of two sides one is refused.
- An older world applies nothing once a newer one is named.  A step needs the votes of all its
  members, and those of the newer one had left it before they asked.

Each new number costs a member.  So a launch of n workers has at most n numbers.  The next launch
begins above them (`recovery.job`), also that of another head, which may not know the last word.
Names of saves have the number in them: no two worlds write under one name.

*Which side.*  If no more members are outside than ask, those who ask go on at once.  So it is after
each death that the head has heard of.  A minority may be cut off from workers that are well, and
yet ask first.  So it waits for a moment.

*The next launch.*  A lost host may have the last world of its launch, or the first worker of that,
which may be in the script.  Then the next launch waits until the host's lease has ended.
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
        """Workers that hold microbatches, the first in rank order; a spare keeps a replica only."""
        return self.workers[: self.capacity]

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


MINORITY_WAITS_S = 1.0
"""So long the others have to ask.  It is also lost where the head knows no death of theirs yet."""

REFUSED = 0
"""In place of a number: another world goes on."""


@dataclass(frozen=True, slots=True)
class Word:
    """The head's answer to the worker that has asked for a world."""

    asker: WorkerId
    generation: int
    outside: frozenset[WorkerId] = frozenset()
    """Who can be in no world any more, if it is refused."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    workers: frozenset[WorkerId]
    asked_at: float


class OneWorld:
    """The worlds of one launch, of which the last one may train."""

    def __init__(self, generation: int, workers: Collection[WorkerId]) -> None:
        """Begin with the world that was ordered; it needs no other word."""
        self.generation = generation
        self.workers = frozenset(workers)
        self._named_at = 0.0
        self._proposals: dict[WorkerId, _Proposal] = {}

    @property
    def first(self) -> WorkerId | None:
        """The first worker of the last world, which writes on behalf of all; None before any."""
        return min(self.workers, default=None)

    @property
    def is_asked(self) -> bool:
        """Whether an answer is due."""
        return bool(self._proposals)

    def ask(self, asker: WorkerId, workers: Collection[WorkerId], now: float) -> None:
        """Take note that survivors have formed a world, for which its first worker asks."""
        self._proposals[asker] = _Proposal(frozenset(workers), now)

    def next_word(self, living: Collection[WorkerId], now: float) -> Word | None:
        """Return the next answer, None if none can be given yet.

        ``living`` are the workers that the head does not know to be dead.
        """
        alive = frozenset(living)
        for asker in self._proposals.keys() - alive:
            del self._proposals[asker]
        ripe = [
            (-len(proposal.workers), asker)
            for asker, proposal in self._proposals.items()
            if now - proposal.asked_at >= MINORITY_WAITS_S or self._is_sure(proposal.workers, alive)
        ]
        if not ripe:
            return None
        _, asker = min(ripe)
        return self._answer(asker, self._proposals.pop(asker).workers, now)

    def left_behind(
        self, living: Collection[WorkerId], now: float, limit_s: float
    ) -> set[WorkerId]:
        """Return the living workers that the last world lacks, once it is older than the limit.

        What is well asks long before.  One that does not hangs in MPI.
        """
        return set(living) - self.workers if now - self._named_at > limit_s else set()

    def _is_sure(self, workers: frozenset[WorkerId], alive: frozenset[WorkerId]) -> bool:
        """Whether no larger world can ask; of two halves that with the lowest worker counts."""
        others = (alive & self.workers) - workers
        if len(others) == len(workers):
            return min(workers) < min(others)
        return len(others) < len(workers) or not workers <= self.workers

    def _answer(self, asker: WorkerId, workers: frozenset[WorkerId], now: float) -> Word:
        outside = workers - self.workers
        if outside or asker not in workers:
            return Word(asker, REFUSED, outside | {asker})
        if workers != self.workers:
            self.generation += 1
            self.workers, self._named_at = workers, now
        return Word(asker, self.generation)
