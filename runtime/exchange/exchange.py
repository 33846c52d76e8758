"""The exact sum over microbatches: roots are exchanged, not partial sums of ranks.

Theory.  Every rank holds the vectors of the maximal subtrees that it owns
(`recovery.reduction`).  The total is the fixed binary tree over all of them, so
its bits do not depend on who owned what.  Each rank folds one slice of it.  Inside
a host it reads its peers' roots where they are (`shared_sum`), otherwise they are sent
(`message_sum`).  Both make exactly the additions of the tree.

Invariant: the roots are only read.  If the exchange breaks, they are still good for
the next world, and no message outlives the call.  The total is whole once a vote of
all ranks has followed, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.recovery.assignment import Assignment
from holdfast.recovery.partial import FloatVector
from holdfast.recovery.reduction import plan_reduction, quiet_context
from holdfast.recovery.work_plan import Work
from holdfast.runtime.exchange.common_memory import CommonMemory, map_peers
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.message_sum import Slices
from holdfast.runtime.exchange.shared_sum import Mapped
from holdfast.runtime.exchange.shared_vectors import SharedVectors
from holdfast.runtime.exchange.vector import Sum, is_finite


class _Way(Protocol):
    """One way to sum vectors of one size over one world by one plan; keeps its buffers."""

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the sum."""


class _Alone:
    """One rank has the one root of all microbatches: it is the sum."""

    def run(self, roots: Sequence[FloatVector], posted: Callable[[], None]) -> Sum:
        """Return the root."""
        posted()
        return Sum(roots[0], is_finite(roots[0]))


def _nothing() -> None:
    """Do nothing."""


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
        self._ways: dict[Work, _Way] = {}
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
        posted: Callable[[], None] = _nothing,
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

    def _way(self, work: Work, assignment: Assignment) -> _Way:
        communicator = self._membership.communicator
        plan = plan_reduction(assignment, self._membership.world, self._microbatches)
        if communicator.size == 1 and len(plan.roots) == 1:
            return _Alone()
        common = self._common.get(work)
        if common is not None:
            return Mapped(communicator, plan, common)
        return Slices(communicator, plan, self._offers[work].floats)
