"""The exact sum of large vectors: every rank folds one slice and sends it to all others.

Each rank sends every other rank the part of its roots that lies in that rank's slice.  It
folds its own slice in tree order, and sends the result to all.  This is the reduce-scatter
plus allgather of Rabenseifner 2004, but the order of the sums does not depend on the
ranks.

Slices go in buckets.  A rank posts all its sends at once, but receives only a few buckets
of roots at a time.  Inside a host the receiver copies a message when it meets a posted
receive.  So a bucket that is folded right after its copy is still in the cache.  Between
hosts the next bucket travels while one is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from holdfast.recovery.partial import FloatVector
from holdfast.recovery.reduction import ReductionPlan, slice_bounds
from holdfast.runtime.exchange.communicator import Communicator, Flight
from holdfast.runtime.exchange.fold import Fold, buckets
from holdfast.runtime.exchange.vector import Sum, aligned_vector, is_finite

BUCKET_FLOATS = 256 * 1024
"""1 MiB: a message of less costs more by the byte."""

WINDOW_BUCKETS = 2
"""Buckets with posted receives: one to fold, one on its way."""

_ROOT_TAG, _RESULT_TAG = 1, 2


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A part of this rank's slice."""

    part: slice
    foreign: tuple[tuple[FloatVector, int], ...]
    """The buffer for each foreign root of the bucket, and the rank that sends it."""
    rows: list[FloatVector]
    """All roots of the bucket in the order of the plan; our own only while it is summed."""


class Slices:
    """Sums vectors of one size by one plan, with two messages between any two ranks."""

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        rank, ranks = communicator.rank, communicator.size
        self._communicator = communicator
        self._mine = [index for index, root in enumerate(plan.roots) if root.rank == rank]
        cuts = [buckets(*bounds, BUCKET_FLOATS) for bounds in slice_bounds(size, ranks)]
        self._peers = [(rank + distance) % ranks for distance in range(1, ranks)]
        # One bucket for every peer, then the next one, so that all peers can begin at once.
        turns = zip_longest(*([(peer, part) for part in cuts[peer]] for peer in self._peers))
        self._away = [part for turn in turns for part in turn if part is not None]
        self._buckets = _buckets(plan, rank, cuts[rank])
        self._fold = Fold(plan, min(BUCKET_FLOATS, size))
        self._result = aligned_vector(size)

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum, in the same memory each time.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        result, has_seen_finite_only = self._result, True
        with self._communicator.flight() as flight:
            arrivals = [_listen(flight, bucket) for bucket in self._buckets[:WINDOW_BUCKETS]]
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
                if index + WINDOW_BUCKETS < len(self._buckets):
                    arrivals.append(_listen(flight, self._buckets[index + WINDOW_BUCKETS]))
        return Sum(result, has_seen_finite_only)

    def _sum(self, bucket: _Bucket, roots: Sequence[FloatVector], result: FloatVector) -> None:
        for index, root in zip(self._mine, roots, strict=True):
            bucket.rows[index] = root[bucket.part]
        self._fold.sum(bucket.rows, result)


def _buckets(plan: ReductionPlan, rank: int, parts: Sequence[slice]) -> list[_Bucket]:
    """Return this rank's buckets, which take turns with the buffers of the window."""
    width = max((part.stop - part.start for part in parts), default=0)
    buffers = [
        [np.empty(width if root.rank != rank else 0, np.float32) for root in plan.roots]
        for _ in parts[:WINDOW_BUCKETS]
    ]
    buckets = []
    for turn, part in enumerate(parts):
        rows = [row[: part.stop - part.start] for row in buffers[turn % WINDOW_BUCKETS]]
        owners = [root.rank for root in plan.roots]
        foreign = [(row, owner) for row, owner in zip(rows, owners, strict=True) if owner != rank]
        buckets.append(_Bucket(part, tuple(foreign), rows))
    return buckets


def _listen(flight: Flight, bucket: _Bucket) -> list[int]:
    """Return the tickets of the bucket's foreign roots."""
    return [flight.receive(row, owner, _ROOT_TAG) for row, owner in bucket.foreign]
