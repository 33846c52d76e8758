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

*Between hosts* each host adds in its memory what it can, and sends the rest.
`recovery.reduction` splits the tree into the subtrees of hosts and the additions
above them, and the vector into pieces.  A rank reads the roots of all ranks of its host where they
are.  For each piece that it serves, it sends the sums of its host's subtrees to the owner of the
piece.  For a piece of its own it adds what came to what its own host has, in tree order.
It sends the total back to the servers, which receive it straight into the one result of
their host.  This is the reduce-scatter plus allgather of Rabenseifner 2004 over hosts, but the
order of the sums does not depend on the hosts.

*Buckets take turns.*  If a rank posted all roots first, all totals would wait behind them on the
same connection.  So it posts the roots of a bucket, then the total of the bucket ``_AHEAD`` turns
before.  Meanwhile the next buckets travel.

*A short vector goes in one message.*  Every rank sends its roots to all others, and folds all of
them.  One round costs less than three: places, roots and totals.

A rank that shares no memory counts as a host of its own.

Slices are folded in buckets.  The roots of a bucket are read from memory once, and their sum is
looked at while it is in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from holdfast.recovery.reduction import (
    FloatVector,
    Fold,
    HostPlan,
    HostRoot,
    OwnPiece,
    ReductionPlan,
    ServedPiece,
    buckets,
    host_roots,
    pieces_of,
    plan_reduction,
    quiet_context,
    slice_bounds,
)
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import Assignment
from holdfast.runtime.exchange.membership import Communicator, Flight, Membership
from holdfast.runtime.exchange.memory import (
    HostMemory,
    SharedVectors,
    Sum,
    aligned_vector,
    is_finite,
    map_peers,
)

BUCKET_FLOATS = 64 * 1024
"""256 KiB: two roots and their sum fit into a second-level cache of 1 MiB."""

GATHERED_FLOATS = 32 * 1024
"""128 KiB: roots of all ranks together that cross the network in one message of each rank.

An eighth of it may leave a host of several workers, which sends each root once for each worker of
the others: 16 KiB take 140 us at 1 Gbit/s, and the two levels take as long for their rounds.
"""

_AHEAD = 2
"""Turns between the roots of a bucket and its total: one to fold, one on its way."""

_TURNS = 6
"""Buckets of a piece that is long enough; nothing overlaps with the first and the last."""

_LEAST_BUCKET_FLOATS, _MOST_BUCKET_FLOATS = 64 * 1024, 128 * 1024
"""256 and 512 KiB: shorter messages cost more by the byte, and longer ones overlap worse."""

_PLACE_TAG, _ROOT_TAG, _TOTAL_TAG = 1, 2, 3


_SumMethod: TypeAlias = Callable[[Sequence[FloatVector], Callable[[], None]], Sum]
"""One way to sum vectors of one size over one world by one plan; keeps its buffers."""


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
        return self._quiet.run(way, roots, posted)

    def _way(self, work: Work, assignment: Assignment) -> _SumMethod:
        communicator = self._membership.communicator
        plan = plan_reduction(assignment, self._membership.world, self._microbatches)
        if communicator.size == 1 and len(plan.roots) == 1:
            return _lone_root
        memory, size = self._memory.get(work), self._offers[work].floats
        if memory is None:
            memory = HostMemory.alone(communicator.size, size)
        if memory.is_common:
            return _SharedMemorySum(communicator, plan, memory, size).run
        most = 1 + max(place for _, place in plan.places)
        if _is_short(memory.hosts, most * size):
            return _GatheredSum(communicator, plan, size).run
        return _TwoLevelSum(communicator, plan, memory, size).run


def _is_short(hosts: Sequence[int], floats: int) -> bool:
    """Return whether roots of so many floats a rank cross the network fastest in one message."""
    ranks, workers = len(hosts), Counter(hosts).values()
    if max(workers) == 1:
        return ranks * floats <= GATHERED_FLOATS
    return max(here * (ranks - here) for here in workers) * floats <= GATHERED_FLOATS // 8


def _lone_root(roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
    """Return the one root of all microbatches: it is the sum."""
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


class _GatheredSum:
    """Sums short vectors: every rank gets the roots of all in one message, and folds them.

    All that can be done before the first sum is done then.  Here a call of NumPy costs more than
    its additions.
    """

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        """Make room for the roots of all ranks, and look up what is added to what."""
        self._communicator = communicator
        most = 1 + max(place for _, place in plan.places)
        self._has_one_root = most == 1
        self._mine = np.zeros((most, size), np.float32)
        self._everyones = np.zeros((communicator.size, most, size), np.float32)
        self._result = aligned_vector(size)
        values = [self._everyones[place] for place in plan.places]
        self._additions = [
            (values[left], values[right], values[left]) for left, right in plan.combines
        ]
        if self._additions:
            left, right, _ = self._additions[-1]
            self._additions[-1] = (left, right, self._result)
        self._first = values[0]

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum, in the same memory each time.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        mine = self._mine
        if self._has_one_root and roots:
            (mine,) = roots  # it needs no copy
        else:
            for place, root in enumerate(roots):
                mine[place] = root
        self._communicator.allgather_unchecked(mine, self._everyones)
        posted()
        for left, right, total in self._additions:
            np.add(left, right, total)
        if not self._additions:
            self._result[:] = self._first
        return Sum(self._result, is_finite(self._result))


class _TwoLevelSum:
    """Sums vectors of one size by one plan over several hosts."""

    def __init__(
        self, communicator: Communicator, plan: ReductionPlan, memory: HostMemory, size: int
    ) -> None:
        """Plan the messages of this rank, and make buffers for the turns that overlap."""
        rank, hosts = communicator.rank, memory.hosts
        self._communicator = communicator
        self._memory = memory
        self._rank = rank
        most = 1 + max(place for _, place in plan.places)
        self._mine = np.zeros(most, np.int64)
        self._mates = [mate for mate in memory.vectors if mate != rank]
        self._told = {mate: np.zeros(most, np.int64) for mate in self._mates}
        split = host_roots(plan, hosts)
        pieces = pieces_of(rank, hosts, size)
        floats = min(max(pieces.longest // _TURNS, _LEAST_BUCKET_FLOATS), _MOST_BUCKET_FLOATS)
        floats = min(floats, pieces.longest)
        self._turns = -(-pieces.longest // floats)
        self._local = _local_roots(plan, split, hosts[rank], floats)
        self._own = [
            _OwnBuckets(piece, split, hosts[rank], self._local, floats) for piece in pieces.own
        ]
        self._served = [_ServedBuckets(piece, self._local, floats) for piece in pieces.served]

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum, of which the ranks of this host have written their pieces.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        result = next(self._memory.turns)
        has_seen_finite_only = True
        with self._communicator.flight() as flight:
            self._find_roots(flight, roots)
            for turn in range(self._turns + _AHEAD):
                for own in self._own:
                    own.listen(flight, turn)
                for served in self._served:
                    served.post(flight, turn, result)
                if turn == 0:
                    posted()
                for own in self._own:
                    is_good = own.add(flight, turn - _AHEAD, result)
                    has_seen_finite_only = is_good and has_seen_finite_only
        return Sum(result, has_seen_finite_only)

    def _find_roots(self, flight: Flight, roots: Sequence[FloatVector]) -> None:
        """Tell the ranks of this host where this rank's roots lie, and find theirs."""
        if not self._mates:
            for local in self._local:
                local.vectors = [roots[place] for _, place in local.places]
            return
        for place, root in enumerate(roots):
            self._mine[place] = self._memory.vectors[self._rank].index_of(root)
        tickets = [flight.receive(told, mate, _PLACE_TAG) for mate, told in self._told.items()]
        for mate in self._mates:
            flight.send(self._mine, mate, _PLACE_TAG)
        for ticket in tickets:
            flight.wait(ticket)
        told = {**self._told, self._rank: self._mine}
        for local in self._local:
            local.vectors = [
                self._memory.vectors[rank].at(int(told[rank][place]))
                for rank, place in local.places
            ]


class _LocalRoot:
    """A subtree of this host, and how its sum is made."""

    def __init__(self, root: HostRoot, places: Sequence[tuple[int, int]], floats: int) -> None:
        self.places = places
        """For each vector the rank that holds it, and its number among the roots of the rank."""
        self.vectors: list[FloatVector] = []
        self._fold = Fold(root.inside, floats)

    def sum(self, part: slice, buffer: FloatVector) -> FloatVector:
        """Return the sum of a part: where it lies if one rank has made it, else in ``buffer``."""
        if len(self.vectors) == 1:
            return self.vectors[0][part]
        total = buffer[: part.stop - part.start]
        self._fold.sum([vector[part] for vector in self.vectors], total)
        return total


def _local_roots(plan: ReductionPlan, split: HostPlan, host: int, floats: int) -> list[_LocalRoot]:
    """Return the subtrees of ``host``, in leaf order."""
    found, start = [], 0
    for root in split.roots:
        stop = start + len(root.inside.roots)
        if root.host == host:
            found.append(_LocalRoot(root, plan.places[start:stop], floats))
        start = stop
    return found


class _ServedBuckets:
    """A piece that another host's rank owns: this rank sends roots, and receives the total."""

    def __init__(self, piece: ServedPiece, local: Sequence[_LocalRoot], floats: int) -> None:
        self._owner = piece.owner
        self._local = local
        self._parts = buckets(piece.start, piece.stop, floats)
        turns = min(len(self._parts), _AHEAD + 1)
        self._buffers = [_buffers(local, floats) for _ in range(turns)]
        self._tickets: list[list[int]] = [[] for _ in range(turns)]

    def post(self, flight: Flight, turn: int, result: FloatVector) -> None:
        """Send the roots of the bucket of a turn, and listen for its total."""
        if turn >= len(self._parts):
            return
        part = self._parts[turn]
        buffers = self._buffers[turn % len(self._buffers)]
        tickets = self._tickets[turn % len(self._buffers)]
        flight.receive(result[part], self._owner, _TOTAL_TAG)
        if turn >= len(self._buffers):
            for ticket in tickets:
                flight.wait(ticket)  # until the buffers may change
        tickets[:] = [
            flight.send(root.sum(part, buffer), self._owner, _ROOT_TAG)
            for root, buffer in zip(self._local, buffers, strict=True)
        ]


class _OwnBuckets:
    """A piece of which this rank makes the total."""

    def __init__(
        self, piece: OwnPiece, split: HostPlan, host: int, local: Sequence[_LocalRoot], floats: int
    ) -> None:
        self._local = local
        self._peers = [peer for at, peer in enumerate(piece.servers) if at != host]
        self._senders = [
            None if root.host == host else piece.servers[root.host] for root in split.roots
        ]
        self._fold = Fold(ReductionPlan((), split.combines), floats)
        self._parts = buckets(piece.start, piece.stop, floats)
        foreign = len(split.roots) - len(local)
        self._inbox = np.empty((min(len(self._parts), _AHEAD + 1), foreign, floats), np.float32)
        self._buffers = _buffers(local, floats)
        self._tickets: list[list[int]] = [[] for _ in self._inbox]

    def listen(self, flight: Flight, turn: int) -> None:
        """Post the receives for the roots of the bucket of a turn."""
        if turn < len(self._parts):
            senders = [sender for sender in self._senders if sender is not None]
            self._tickets[turn % len(self._tickets)][:] = [
                flight.receive(row, sender, _ROOT_TAG)
                for row, sender in zip(self._arrivals(turn), senders, strict=True)
            ]

    def add(self, flight: Flight, turn: int, result: FloatVector) -> bool:
        """Make the total of the bucket of a turn, send it, and return whether it is finite."""
        if not 0 <= turn < len(self._parts):
            return True
        for ticket in self._tickets[turn % len(self._tickets)]:
            flight.wait(ticket)
        part = self._parts[turn]
        came = iter(self._arrivals(turn))
        made = (
            root.sum(part, buffer) for root, buffer in zip(self._local, self._buffers, strict=True)
        )
        rows = [next(made if sender is None else came) for sender in self._senders]
        total = result[part]
        self._fold.sum(rows, total)
        for peer in self._peers:
            flight.send(total, peer, _TOTAL_TAG)
        return is_finite(total)  # while it is in the cache

    def _arrivals(self, turn: int) -> list[FloatVector]:
        """Return where the roots of other hosts are received, in leaf order."""
        part = self._parts[turn]
        return [row[: part.stop - part.start] for row in self._inbox[turn % len(self._inbox)]]


def _buffers(local: Sequence[_LocalRoot], floats: int) -> list[FloatVector]:
    """Return room for the sums of this host's subtrees; none for those that lie somewhere."""
    return [np.empty(floats if len(root.places) > 1 else 0, np.float32) for root in local]
