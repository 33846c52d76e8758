"""The exact sum over microbatches: roots are exchanged, not partial sums of ranks.

Theory.  Every rank holds the vectors of the maximal subtrees that it owns
(`recovery.reduction`).  The total is the fixed binary tree over all of them, so
its bits do not depend on who owned what.  Each rank folds one slice of it.  Inside
a host it reads its peers' roots where they are (`mapped`), otherwise they are sent
(`slices`).  Both make exactly the additions of the tree.

Invariant: the roots are only read.  If the exchange breaks, they are still good for
the next world, and no message outlives the call.  The total is whole once a vote of
all ranks has followed, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.recovery.partial import FloatVector
from holdfast.recovery.reduction import ReductionPlan, quiet_context, slice_bounds
from holdfast.runtime.exchange.common_memory import CommonMemory
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.exchange.message_sum import Slices
from holdfast.runtime.exchange.shared_sum import Mapped
from holdfast.runtime.exchange.vector import is_finite


def _nothing() -> None:
    """Do nothing."""


class TreeExchange:
    """Sums vectors of one size over one world by one plan; buffers are kept between calls."""

    def __init__(
        self,
        communicator: Communicator,
        plan: ReductionPlan,
        size: int,
        common: CommonMemory | None = None,
    ) -> None:
        """Prepare to sum vectors of ``size`` floats, in ``common`` memory where there is some."""
        self._is_alone = communicator.size == 1 and len(plan.roots) == 1
        self._way = (
            Mapped(communicator, plan, common) if common else Slices(communicator, plan, size)
        )
        self._mine = slice(*slice_bounds(size, communicator.size)[communicator.rank])
        self._is_total_finite = True
        self._quiet = quiet_context()

    def total(
        self, roots: Sequence[FloatVector], posted: Callable[[], None] = _nothing
    ) -> FloatVector:
        """Return the sum over all microbatches; valid from the next vote to the next call.

        A sum may overflow: the vote refuses such a step, on all workers alike.

        Args:
            roots: vectors of this rank's nodes, in the order of the plan; allocated by
                this rank's shared vectors if there is common memory.
            posted: called once while messages are in the air (fault injection).

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        if self._is_alone:
            posted()
            self._is_total_finite = self._quiet.run(is_finite, roots[0][self._mine])
            return roots[0]
        self._is_total_finite = self._quiet.run(self._way.run, roots, posted)
        return self._way.result

    @property
    def is_finite(self) -> bool:
        """Whether this rank's slice of the last total holds no infinity and no NaN.

        Together the ranks look at all of it; the vote joins their answers.
        """
        return self._is_total_finite
