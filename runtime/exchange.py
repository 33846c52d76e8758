"""The exact sum over microbatches: roots are exchanged, not partial sums of ranks.

Theory.  Every rank holds the vectors of the maximal subtrees that it owns
(`recovery.reduction`).  The total is the fixed binary tree over all of them, so
its bits do not depend on who owned what.  Two ways lead there:

* *small vectors*: one allgather of all roots; every rank folds all of them;
* *large vectors*: the vector is cut into one slice per rank.  Each rank sends
  every other rank its roots' share of that rank's slice, folds its own slice in
  tree order, and sends the result to everyone.  Slices go in buckets, so that
  a bucket is folded while it is still in the cache and the next one is on its
  way (the reduce-scatter plus allgather of Rabenseifner 2004, with the order of
  the sums taken out of the hands of the ranks).

The roots are only read: if the exchange breaks, they are still good for the
next world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.recovery.reduction import ReductionPlan, slice_bounds
from holdfast.runtime.aligned import aligned_vector
from holdfast.runtime.communicator import Communicator, Flight
from holdfast.runtime.replica import FloatVector

SMALL_FLOATS = 16 * 1024
"""Below this length one allgather beats two phases (bench/reduce)."""

BUCKET_FLOATS = 256 * 1024
"""1 MiB: two roots and the result of a bucket fit the second-level cache (bench/reduce)."""

_ROOT_TAG, _RESULT_TAG = 1, 2


def _nothing() -> None:
    """Do nothing."""


class TreeExchange:
    """Sums vectors of one size over one world by one plan; buffers are kept between calls."""

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        self._communicator = communicator
        self._plan = plan
        self._size = size
        self._total = aligned_vector(size)
        self._mine = [i for i, root in enumerate(plan.roots) if root.rank == communicator.rank]
        is_small = size * max(1, len(plan.roots)) <= SMALL_FLOATS * 2
        self._path = _Gathered(self) if is_small else _Sliced(self)

    def total(
        self, roots: Sequence[FloatVector], posted: Callable[[], None] = _nothing
    ) -> FloatVector:
        """Return the sum over all microbatches; valid until the next call.

        Args:
            roots: vectors of this rank's nodes, in the order of the plan.
            posted: called once while messages are in the air (fault injection).

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        if self._communicator.size == 1 and len(roots) == 1:
            posted()
            return roots[0]
        # A sum may overflow: the vote refuses such a step, on all workers alike.
        with np.errstate(over="ignore", invalid="ignore"):
            self._path.run(roots, posted)
        return self._total

    def is_finite(self, total: FloatVector) -> bool:
        """Return whether this rank's slice of ``total`` holds no infinity and no NaN.

        Together the ranks look at all of it; the vote joins their answers.
        """
        start, stop = slice_bounds(self._size, self._communicator.size)[self._communicator.rank]
        mine = total[start:stop]
        # A finite sum has finite terms; finite terms may overflow in the sum.
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(mine.sum()) or np.isfinite(mine).all())

    @property
    def communicator(self) -> Communicator:
        """The world's communicator."""
        return self._communicator

    @property
    def plan(self) -> ReductionPlan:
        """Who holds which root and the order of the sums."""
        return self._plan

    @property
    def size(self) -> int:
        """Floats of a vector."""
        return self._size

    @property
    def result(self) -> FloatVector:
        """The buffer of the total."""
        return self._total

    @property
    def mine(self) -> Sequence[int]:
        """Indices of this rank's roots in the plan."""
        return self._mine


class _Gathered:
    """One allgather of all roots, then the whole tree on every rank."""

    def __init__(self, exchange: TreeExchange) -> None:
        self._exchange = exchange
        plan, communicator = exchange.plan, exchange.communicator
        owners = [root.rank for root in plan.roots]
        self._counts = [owners.count(rank) * exchange.size for rank in range(communicator.size)]
        self._sent = np.empty(len(exchange.mine) * exchange.size, np.float32)
        self._gathered = np.empty((len(owners), exchange.size), np.float32)
        by_rank = sorted(range(len(owners)), key=lambda index: (owners[index], index))
        self._row = {index: row for row, index in enumerate(by_rank)}

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> None:
        """Fill the exchange's total."""
        size = self._exchange.size
        for place, root in enumerate(roots):
            self._sent[place * size : (place + 1) * size] = root
        posted()
        self._exchange.communicator.allgather(self._sent, self._gathered, self._counts)
        rows = [self._gathered[self._row[index]] for index in range(len(self._row))]
        _fold(rows, self._exchange.plan.combines, self._exchange.result)


class _Sliced:
    """Every rank folds one slice and sends the result to all others, bucket by bucket."""

    def __init__(self, exchange: TreeExchange) -> None:
        self._exchange = exchange
        communicator = exchange.communicator
        self._slices = slice_bounds(exchange.size, communicator.size)
        self._buckets = [_buckets(start, stop) for start, stop in self._slices]
        start, stop = self._slices[communicator.rank]
        self._foreign = {
            index: np.empty(stop - start, np.float32)
            for index in range(len(exchange.plan.roots))
            if index not in exchange.mine
        }
        rank, size = communicator.rank, communicator.size
        self._peers = [(rank + distance) % size for distance in range(1, size)]

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> None:
        """Fill the exchange's total."""
        with self._exchange.communicator.flight() as flight:
            arrivals = self._post_receives(flight)
            self._send_roots(flight, roots)
            posted()
            self._fold_my_slice(flight, roots, arrivals)

    def _post_receives(self, flight: Flight) -> list[list[int]]:
        """Return, for each bucket of my slice, the tickets of the foreign roots."""
        arrivals: list[list[int]] = []
        rank, plan = self._exchange.communicator.rank, self._exchange.plan
        offset = self._slices[rank][0]
        for start, stop in self._buckets[rank]:
            arrivals.append(
                [
                    flight.receive(
                        vector[start - offset : stop - offset], plan.roots[i].rank, _ROOT_TAG
                    )
                    for i, vector in self._foreign.items()
                ]
            )
        for peer in self._peers:
            for start, stop in self._buckets[peer]:
                flight.receive(self._exchange.result[start:stop], peer, _RESULT_TAG)
        return arrivals

    def _send_roots(self, flight: Flight, roots: Sequence[FloatVector]) -> None:
        for peer in self._peers:
            for start, stop in self._buckets[peer]:
                for root in roots:
                    flight.send(root[start:stop], peer, _ROOT_TAG)

    def _fold_my_slice(
        self, flight: Flight, roots: Sequence[FloatVector], arrivals: list[list[int]]
    ) -> None:
        exchange = self._exchange
        rank = exchange.communicator.rank
        offset = self._slices[rank][0]
        own = dict(zip(exchange.mine, roots, strict=True))
        for (start, stop), tickets in zip(self._buckets[rank], arrivals, strict=True):
            for ticket in tickets:
                flight.wait(ticket)
            rows = [
                own[i][start:stop] if i in own else self._foreign[i][start - offset : stop - offset]
                for i in range(len(exchange.plan.roots))
            ]
            result = exchange.result[start:stop]
            _fold(rows, exchange.plan.combines, result)
            for peer in self._peers:
                flight.send(result, peer, _RESULT_TAG)


def _buckets(start: int, stop: int) -> list[tuple[int, int]]:
    return [(at, min(at + BUCKET_FLOATS, stop)) for at in range(start, stop, BUCKET_FLOATS)]


def _fold(
    rows: Sequence[FloatVector], combines: Sequence[tuple[int, int]], result: FloatVector
) -> None:
    """Add ``rows`` up in the order of ``combines`` without changing any of them.

    Sums of nodes that begin at the first leaf build up in ``result``; a sum that
    waits for its left neighbour needs a buffer of its own.
    """
    if not combines:
        np.copyto(result, rows[0])
        return
    values = list(rows)
    scratch: dict[int, FloatVector] = {}
    for left, right in combines:
        if left and left not in scratch:
            scratch[left] = np.empty_like(result)
        target = scratch[left] if left else result
        np.add(values[left], values[right], out=target)
        values[left] = target
