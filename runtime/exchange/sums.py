"""The exact sum over microbatches: roots are exchanged, not partial sums of ranks.

Theory.  Every rank holds the vectors of the maximal subtrees that it owns
(`recovery.reduction`).  The total is the fixed binary tree over all of them, so
its bits do not depend on who owned what.  Each rank folds one slice of it.  Inside
a host it reads its peers' roots where they are, and between hosts they are sent.  All ways
make exactly the additions of the tree.

Invariant: the roots are only read.  If the exchange breaks, they are still good for
the next world, and no message outlives the call.  The total is whole once a vote of
all ranks has followed, and not before.

*Inside a host* no float is sent.  Each rank tells all others the places of its roots, which
also says that they are whole.  Then it folds its slice of all roots, in tree order, into the one
result that all ranks map.  Once the vote has passed, all slices are whole.  The vote is the
second and last synchronisation, and the step needs it anyway.  The places are read without a
proof that all have told theirs: MPI may return success with old ones when a member dies.  So no
slice is written into the result of the step before, which a slow rank may still be reading.  The
vote then refuses a sum of old places.

*Between hosts* see `two_level_sum`.

Slices are folded in buckets.  The roots of a bucket are read from memory once, and their sum is
looked at while it is in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from holdfast.recovery.reduction import (
    FloatVector,
    Fold,
    ReductionPlan,
    buckets,
    plan_reduction,
    quiet_context,
    slice_bounds,
)
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import Assignment
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.memory import (
    HostMemory,
    SharedVectors,
    Sum,
    is_finite,
    map_peers,
)
from holdfast.runtime.exchange.two_level_sum import GatheredSum, TwoLevelSum

BUCKET_FLOATS = 64 * 1024
"""256 KiB: two roots and their sum fit into a second-level cache of 1 MiB."""

GATHERED_FLOATS = 32 * 1024
"""128 KiB: roots of all ranks together that cross the network in one message of each rank.

An eighth of it may leave a host of several workers, which sends each root once for each worker of
the others: 16 KiB take 140 us at 1 Gbit/s, and the two levels take as long for their rounds.
"""


class Exchange:
    """Sums the vectors of all ranks, for each kind of work in memory of its own."""

    def __init__(
        self, membership: Membership, offers: Mapping[Work, SharedVectors], microbatches: int
    ) -> None:
        """Prepare to sum vectors of ``offers``, without common memory until peers are mapped."""
        self._membership = membership
        self._offers = offers
        self._microbatches = microbatches
        self._memory: dict[Work, HostMemory] = {}
        self._ways: dict[Work, _SumMethod] = {}
        self._quiet = quiet_context()

    def map_peers(self) -> None:
        """Forget the world before; called by all members of a new one at the same point.

        Raises:
            WorldBroken: someone died; repair.
        """
        self._ways.clear()
        self._memory.clear()
        if self._membership.communicator.size > 1:
            found = map_peers(self._membership, list(self._offers.values()))
            self._memory.update(zip(self._offers, found, strict=True))

    def reassign(self) -> None:
        """Forget the plans; called by all members at the same point, when owners change."""
        self._ways.clear()

    def sum(
        self,
        work: Work,
        roots: Sequence[FloatVector],
        assignment: Assignment,
        posted: Callable[[], None] = lambda: None,
    ) -> Sum:
        """Return the sum over all microbatches; valid from the next vote to the next call.

        A sum may overflow: the vote refuses such a step, on all workers alike.

        Args:
            work: what is summed.
            roots: vectors of this rank's nodes, in the order of the plan; allocated by
                this rank's shared vectors if there is common memory.
            assignment: who owns which microbatches; one for all of a world.
            posted: called once while messages are in the air (fault injection).

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        way = self._ways.get(work)
        if way is None:
            way = self._ways[work] = self._way(work, assignment)
        return self._quiet.run(way.run, roots, posted)

    def _way(self, work: Work, assignment: Assignment) -> _SumMethod:
        communicator = self._membership.communicator
        plan = plan_reduction(assignment, self._membership.world, self._microbatches)
        if communicator.size == 1 and len(plan.roots) == 1:
            return _LoneRoot()
        memory, size = self._memory.get(work), self._offers[work].floats
        if memory is None:
            memory = HostMemory.alone(communicator.size, size)
        if memory.is_common:
            return _SharedMemorySum(communicator, plan, memory, size)
        most = 1 + max(place for _, place in plan.places)
        if _is_short(memory.hosts, most * size):
            return GatheredSum(communicator, plan, size)
        return TwoLevelSum(communicator, plan, memory, size)


def _is_short(hosts: Sequence[int], floats: int) -> bool:
    """Return whether roots of so many floats a rank cross the network fastest in one message."""
    ranks, workers = len(hosts), Counter(hosts).values()
    if max(workers) == 1:
        return ranks * floats <= GATHERED_FLOATS
    return max(here * (ranks - here) for here in workers) * floats <= GATHERED_FLOATS // 8


class _SumMethod(Protocol):
    """One way to sum vectors of one size over one world by one plan; keeps its buffers."""

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum."""


class _LoneRoot:
    """One rank has the one root of all microbatches: it is the sum."""

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the root."""
        posted()
        return Sum(roots[0], is_finite(roots[0]))


class _SharedMemorySum:
    """Sums vectors of one size by one plan, in memory that all ranks of the world map."""

    def __init__(
        self, communicator: Communicator, plan: ReductionPlan, memory: HostMemory, size: int
    ) -> None:
        rank, ranks = communicator.rank, communicator.size
        self._communicator = communicator
        self._memory = memory
        self._own = memory.vectors[rank]
        self._parts = buckets(*slice_bounds(size, ranks)[rank], BUCKET_FLOATS)
        self._fold = Fold(plan, min(BUCKET_FLOATS, size))
        self._places = plan.places
        most = 1 + max(place for _, place in plan.places)
        self._mine = np.zeros(most, np.int64)
        self._everyones = np.zeros((ranks, most), np.int64)
        self._known = b""
        self._sums: list[tuple[list[FloatVector], slice]] = []

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum, of which this rank has written its slice.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        for place, root in enumerate(roots):
            self._mine[place] = self._own.index_of(root)
        self._communicator.allgather_unchecked(self._mine, self._everyones)
        posted()
        self._find_roots()
        result = next(self._memory.turns)
        has_seen_finite_only = True
        for rows, part in self._sums:
            mine = result[part]
            self._fold.sum(rows, mine)
            has_seen_finite_only = is_finite(mine) and has_seen_finite_only
        return Sum(result, has_seen_finite_only)

    def _find_roots(self) -> None:
        """Look up the roots to sum; they seldom lie elsewhere than in the step before."""
        told = self._everyones.tobytes()
        if told == self._known:
            return
        indices = self._everyones.tolist()
        roots = [
            self._memory.vectors[rank].at(indices[rank][place]) for rank, place in self._places
        ]
        self._sums = [([root[part] for root in roots], part) for part in self._parts]
        self._known = told
