"""The exact sum over microbatches: roots are exchanged, not partial sums of ranks.

Theory.  Every rank holds the vectors of the maximal subtrees that it owns
(`recovery.reduction`).  The total is the fixed binary tree over all of them, so
its bits do not depend on who owned what.  Two ways lead there: ranks swap whole
small vectors (`climb`), and share the work on large ones (`slices`).  Both make
exactly the additions of the tree.

The roots are only read: if the exchange breaks, they are still good for the
next world.  Whatever happens, no message outlives the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.recovery.reduction import ReductionPlan, slice_bounds
from holdfast.runtime.aligned import aligned_vector
from holdfast.runtime.climb import Climb
from holdfast.runtime.communicator import Communicator
from holdfast.runtime.finite import is_finite
from holdfast.runtime.replica import FloatVector
from holdfast.runtime.slices import Slices

SMALL_FLOATS = 96 * 1024
"""Up to 384 KiB over all ranks, fewer messages beat less copying (bench/reduce)."""


def _nothing() -> None:
    """Do nothing."""


class TreeExchange:
    """Sums vectors of one size over one world by one plan; buffers are kept between calls."""

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        self._is_alone = communicator.size == 1 and len(plan.roots) == 1
        self._total = aligned_vector(size)
        way = Climb if size * communicator.size <= SMALL_FLOATS else Slices
        self._way = way(communicator, plan, size)
        self._mine = slice(*slice_bounds(size, communicator.size)[communicator.rank])
        self._is_total_finite = True

    def total(
        self, roots: Sequence[FloatVector], posted: Callable[[], None] = _nothing
    ) -> FloatVector:
        """Return the sum over all microbatches; valid until the next call.

        A sum may overflow: the vote refuses such a step, on all workers alike.

        Args:
            roots: vectors of this rank's nodes, in the order of the plan.
            posted: called once while messages are in the air (fault injection).

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        if self._is_alone:
            posted()
            return roots[0]
        with np.errstate(over="ignore", invalid="ignore"):
            self._is_total_finite = self._way.run(roots, posted, self._total)
        return self._total

    def is_finite(self, total: FloatVector) -> bool:
        """Return whether this rank's slice of ``total`` holds no infinity and no NaN.

        Together the ranks look at all of it; the vote joins their answers.
        """
        if total is self._total:
            return self._is_total_finite
        with np.errstate(over="ignore", invalid="ignore"):
            return is_finite(total[self._mine])
