"""The exact sum inside a host: every rank folds one slice straight from its peers' memory.

No float is sent.  Each rank tells all others the places of its roots, which also says that
they are whole.  Then it folds its slice of all roots, in tree order, into the one result
that all ranks map.  Once the vote has passed, all slices are whole.  The vote is the
second and last synchronisation, and the step needs it anyway.

The places are read without a proof that all have told theirs: MPI may return success with
old ones when a member dies.  So no slice is written into the result of the step before,
which a slow rank may still be reading.  The vote then refuses a sum of old places.

The roots of a bucket are read from memory once.  Their sum is looked at while it is in the
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.recovery.partial import FloatVector
from holdfast.recovery.reduction import ReductionPlan, slice_bounds
from holdfast.runtime.exchange.common_memory import CommonMemory
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.exchange.fold import BUCKET_FLOATS, Fold, buckets
from holdfast.runtime.exchange.vector import Sum, is_finite


class Mapped:
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
