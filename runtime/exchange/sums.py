"""The exact sum over microbatches: roots are exchanged, not partial sums of ranks.

Theory.  Every rank holds the vectors of the maximal subtrees that it owns
(`recovery.reduction`).  The total is the fixed binary tree over all of them, so
its bits do not depend on who owned what.  Each rank folds one slice of it.  Inside
a host it reads its peers' roots where they are, otherwise they are sent.  Both ways make
exactly the additions of the tree.

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

*Between hosts* each rank sends every other rank the part of its roots that lies in that rank's
slice.  It folds its own slice in tree order, and sends the result to all.  This is the
reduce-scatter plus allgather of Rabenseifner 2004, but the order of the sums does not depend on
the ranks.  A rank posts all its sends at once, but receives only a few buckets of roots at a time.
Inside a host the receiver copies a message when it meets a posted receive.  So a bucket that is
folded right after its copy is still in the cache.  Between hosts the next bucket travels while one
is folded.

Slices are folded in buckets.  The roots of a bucket are read from memory once, and their sum is
looked at while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
from holdfast.runtime.exchange.communicator import Communicator, Flight
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.memory import (
    CommonMemory,
    SharedVectors,
    Sum,
    aligned_vector,
    is_finite,
    map_peers,
)

BUCKET_FLOATS = 64 * 1024
"""256 KiB: two roots and their sum fit into a second-level cache of 1 MiB."""

_MESSAGE_FLOATS = 256 * 1024
"""1 MiB: a message of less costs more by the byte."""

_WINDOW_BUCKETS = 2
"""Buckets with posted receives: one to fold, one on its way."""

_ROOT_TAG, _RESULT_TAG = 1, 2


class Exchange:
    """Sums the vectors of all ranks, for each kind of work in memory of its own."""

    def __init__(
        self, membership: Membership, offers: Mapping[Work, SharedVectors], microbatches: int
    ) -> None:
        """Prepare to sum vectors of ``offers``, without common memory until peers are mapped."""
        self._membership = membership
        self._offers = offers
        self._microbatches = microbatches
        self._common: dict[Work, CommonMemory | None] = {}
        self._ways: dict[Work, _SumMethod] = {}
        self._quiet = quiet_context()

    def map_peers(self) -> None:
        """Forget the world before; called by all members of a new one at the same point.

        Raises:
            WorldBroken: someone died; repair.
        """
        self._ways.clear()
        self._common.clear()
        if self._membership.communicator.size > 1:
            found = map_peers(self._membership, list(self._offers.values()))
            self._common.update(zip(self._offers, found, strict=True))

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
        if work not in self._ways:
            self._ways[work] = self._way(work, assignment)
        return self._quiet.run(self._ways[work].run, roots, posted)

    def _way(self, work: Work, assignment: Assignment) -> _SumMethod:
        communicator = self._membership.communicator
        plan = plan_reduction(assignment, self._membership.world, self._microbatches)
        if communicator.size == 1 and len(plan.roots) == 1:
            return _Alone()
        common = self._common.get(work)
        if common is not None:
            return _Mapped(communicator, plan, common)
        return _Slices(communicator, plan, self._offers[work].floats)


class _SumMethod(Protocol):
    """One way to sum vectors of one size over one world by one plan; keeps its buffers."""

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum."""


class _Alone:
    """One rank has the one root of all microbatches: it is the sum."""

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the root."""
        posted()
        return Sum(roots[0], is_finite(roots[0]))


class _Mapped:
    """Sums vectors of one size by one plan, in memory that all ranks of the world map."""

    def __init__(
        self, communicator: Communicator, plan: ReductionPlan, common: CommonMemory
    ) -> None:
        rank, ranks = communicator.rank, communicator.size
        self._communicator = communicator
        self._vectors = common.vectors
        self._own = common.vectors[rank]
        self._results = common.turns
        size = len(common.results[0])
        self._parts = buckets(*slice_bounds(size, ranks)[rank], BUCKET_FLOATS)
        self._fold = Fold(plan, min(BUCKET_FLOATS, size))
        owners = [root.rank for root in plan.roots]
        places = [owners[:index].count(owner) for index, owner in enumerate(owners)]
        self._sources = list(zip(owners, places, strict=True))
        most = max(places) + 1
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
        result = next(self._results)
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
        roots = [self._vectors[rank].at(indices[rank][place]) for rank, place in self._sources]
        self._sums = [([root[part] for root in roots], part) for part in self._parts]
        self._known = told


class _Slices:
    """Sums vectors of one size by one plan, with two messages between any two ranks."""

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        rank, ranks = communicator.rank, communicator.size
        self._communicator = communicator
        self._mine = [index for index, root in enumerate(plan.roots) if root.rank == rank]
        cuts = [buckets(*bounds, _MESSAGE_FLOATS) for bounds in slice_bounds(size, ranks)]
        self._peers = [(rank + distance) % ranks for distance in range(1, ranks)]
        # One bucket for every peer, then the next one, so that all peers can begin at once.
        turns = zip_longest(*([(peer, part) for part in cuts[peer]] for peer in self._peers))
        self._away = [part for turn in turns for part in turn if part is not None]
        self._buckets = _buckets(plan, rank, cuts[rank])
        self._fold = Fold(plan, min(_MESSAGE_FLOATS, size))
        self._result = aligned_vector(size)

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum, in the same memory each time.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        result, has_seen_finite_only = self._result, True
        with self._communicator.flight() as flight:
            arrivals = [_listen(flight, bucket) for bucket in self._buckets[:_WINDOW_BUCKETS]]
            for peer, part in self._away:
                for root in roots:
                    flight.send(root[part], peer, _ROOT_TAG)
            for peer, part in self._away:
                flight.receive(result[part], peer, _RESULT_TAG)
            posted()
            for index, bucket in enumerate(self._buckets):
                for ticket in arrivals[index]:
                    flight.wait(ticket)
                mine = result[bucket.part]
                self._sum(bucket, roots, mine)
                for peer in self._peers:
                    flight.send(mine, peer, _RESULT_TAG)
                # Checked while it is still in the cache.
                has_seen_finite_only = is_finite(mine) and has_seen_finite_only
                if index + _WINDOW_BUCKETS < len(self._buckets):
                    arrivals.append(_listen(flight, self._buckets[index + _WINDOW_BUCKETS]))
        return Sum(result, has_seen_finite_only)

    def _sum(self, bucket: _Bucket, roots: Sequence[FloatVector], result: FloatVector) -> None:
        for index, root in zip(self._mine, roots, strict=True):
            bucket.rows[index] = root[bucket.part]
        self._fold.sum(bucket.rows, result)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A part of this rank's slice."""

    part: slice
    foreign: tuple[tuple[FloatVector, int], ...]
    """The buffer for each foreign root of the bucket, and the rank that sends it."""
    rows: list[FloatVector]
    """All roots of the bucket in the order of the plan; our own only while it is summed."""


def _buckets(plan: ReductionPlan, rank: int, parts: Sequence[slice]) -> list[_Bucket]:
    """Return this rank's buckets, which take turns with the buffers of the window."""
    width = max((part.stop - part.start for part in parts), default=0)
    buffers = [
        [np.empty(width if root.rank != rank else 0, np.float32) for root in plan.roots]
        for _ in parts[:_WINDOW_BUCKETS]
    ]
    buckets = []
    for turn, part in enumerate(parts):
        rows = [row[: part.stop - part.start] for row in buffers[turn % _WINDOW_BUCKETS]]
        owners = [root.rank for root in plan.roots]
        foreign = [(row, owner) for row, owner in zip(rows, owners, strict=True) if owner != rank]
        buckets.append(_Bucket(part, tuple(foreign), rows))
    return buckets


def _listen(flight: Flight, bucket: _Bucket) -> list[int]:
    """Return the tickets of the bucket's foreign roots."""
    return [flight.receive(row, owner, _ROOT_TAG) for row, owner in bucket.foreign]
