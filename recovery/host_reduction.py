"""Where the additions of a step's tree are made, when the workers live on several hosts.

Between hosts the network is the narrow place, so a sum has two levels. A host first makes the
sums of the *maximal subtrees that it owns as a whole*, from the subtrees of its workers. Only
these *host roots* travel. The additions above them make the total. The tree stays the same, and
so do the bits: a plan for ranks is only split in two.

Nobody leads. The vector is cut into one slice for each host, and each slice into pieces. One
worker of the host *owns* a piece, and makes the total of it. On every other host one worker
*serves* the piece: it sends its host's roots to the owner and receives the total. All workers
read and write the memory of their own host. So all cores and all connections of a host work,
also if hosts have unequal numbers of workers. From a host with one root go (h-1)/h vectors of roots
and as many of totals, for h hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.recovery.reduction import ReductionPlan, slice_bounds

_SEVERAL = -1


@dataclass(frozen=True, slots=True)
class HostRoot:
    """A subtree that one host sums alone; no larger one is wholly its own.

    ``inside`` are the subtrees of the host's ranks in it, and the additions that make its sum.
    """

    host: int
    inside: ReductionPlan


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The host roots in leaf order, and the additions above them, as in ``ReductionPlan``."""

    roots: tuple[HostRoot, ...]
    combines: tuple[tuple[int, int], ...]


def host_roots(plan: ReductionPlan, hosts: Sequence[int]) -> HostPlan:
    """Split ``plan`` into what each host adds alone, and the rest; ``hosts`` has that of each rank.

    The additions are those of ``plan``, each of them once.
    """
    owner = [hosts[root.rank] for root in plan.roots]
    inner, outer = [], []
    begins = set()
    for left, right in plan.combines:
        if owner[left] == owner[right] != _SEVERAL:
            inner.append((left, right))
            continue
        outer.append((left, right))
        begins |= {index for index in (left, right) if owner[index] != _SEVERAL}
        owner[left] = _SEVERAL
    starts = sorted(begins) or [0]
    stops = [*starts[1:], len(plan.roots)]
    number: list[int] = []
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        number += [index] * (stop - start)
    combines: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for left, right in inner:
        start = starts[number[left]]
        combines[number[left]].append((left - start, right - start))
    roots = [
        HostRoot(
            hosts[plan.roots[start].rank],
            ReductionPlan(plan.roots[start:stop], tuple(combines[index])),
        )
        for index, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]
    return HostPlan(tuple(roots), tuple((number[left], number[right]) for left, right in outer))


@dataclass(frozen=True, slots=True)
class OwnPiece:
    """A piece of the vector of which a rank makes the total."""

    start: int
    stop: int
    servers: tuple[int, ...]
    """The rank that serves the piece on each host; on the owner's own host it is the owner."""


@dataclass(frozen=True, slots=True)
class ServedPiece:
    """A piece of which a rank of another host makes the total."""

    start: int
    stop: int
    owner: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one rank does of a sum over several hosts; no piece is empty."""

    own: tuple[OwnPiece, ...]
    served: tuple[ServedPiece, ...]
    """Those of the next host first, so that not all hosts send to the same one at once."""
    longest: int
    """Elements of the longest piece of all ranks."""


def pieces_of(rank: int, hosts: Sequence[int], size: int) -> Pieces:
    """Return the pieces of a vector of ``size`` that ``rank`` owns and serves.

    Hosts are numbered from 0, and ``hosts`` has that of each rank. Each slice has as many pieces as
    the host with most workers has workers.
    """
    members: list[list[int]] = [[] for _ in range(max(hosts) + 1)]
    for member, host in enumerate(hosts):
        members[host].append(member)
    mine = hosts[rank]
    width = max(map(len, members))
    bounds = slice_bounds(size, len(members) * width)
    turns = range(members[mine].index(rank), width, len(members[mine]))
    own, served = [], []
    for turn in turns:
        start, stop = bounds[mine * width + turn]
        if start < stop:
            own.append(OwnPiece(start, stop, tuple(ranks[turn % len(ranks)] for ranks in members)))
    for host in (*range(mine + 1, len(members)), *range(mine)):
        for turn in turns:
            start, stop = bounds[host * width + turn]
            if start < stop:
                owner = members[host][turn % len(members[host])]
                served.append(ServedPiece(start, stop, owner))
    longest = max(stop - start for start, stop in bounds)
    return Pieces(tuple(own), tuple(served), longest)
