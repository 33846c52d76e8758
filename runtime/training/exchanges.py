"""The exchanges of one world: one for each kind of transaction, made when first needed."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.recovery.assignment import Assignment
from holdfast.recovery.reduction import plan_reduction
from holdfast.recovery.work_plan import Work
from holdfast.runtime.exchange.common_memory import CommonMemory, map_peers
from holdfast.runtime.exchange.exchange import TreeExchange
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.training.transaction import Transaction


class Exchanges:
    """Knows how the sums of this world are made."""

    def __init__(
        self, membership: Membership, transactions: Mapping[Work, Transaction], microbatches: int
    ) -> None:
        self._membership = membership
        self._transactions = transactions
        self._microbatches = microbatches
        self._common: dict[Work, CommonMemory | None] = {}
        self._exchanges: dict[Work, TreeExchange] = {}

    def renew(self) -> None:
        """Forget those of the world before; called by all members of a new one.

        Raises:
            WorldBroken: someone died; repair.
        """
        self._exchanges.clear()
        self._common.clear()
        if self._membership.communicator.size > 1:
            offers = [transaction.vectors for transaction in self._transactions.values()]
            found = map_peers(self._membership, offers)
            self._common.update(zip(self._transactions, found, strict=True))

    def of(self, transaction: Transaction, assignment: Assignment) -> TreeExchange:
        """Return the exchange for ``transaction``; the assignment is one for all of a world."""
        work = transaction.work
        if work not in self._exchanges:
            membership = self._membership
            plan = plan_reduction(assignment, membership.world, self._microbatches)
            common = self._common.get(work)
            self._exchanges[work] = TreeExchange(
                membership.communicator, plan, transaction.size, common
            )
        return self._exchanges[work]
