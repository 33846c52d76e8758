"""Mends that rank 0 orders of the host's writer, which alone changes the checkpoints.

Rank 0 reads what second holders have, and nothing more.  If the writer dies while it mends,
the restore goes on from what verifies, and the next order finds another writer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoint.upkeep.mend import MendResult
from holdfast.runtime.committing.mend_order import MendOrder
from holdfast.runtime.committing.mending import Holder, KnownHolders, Mender, mirrors, tell_failure
from holdfast.runtime.committing.mirror import Mirror
from holdfast.runtime.committing.report import Report
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.saving.agent_memory import AgentMemory
from holdfast.runtime.saving.local_terms import local_terms
from holdfast.runtime.saving.own_way import ContextReport
from holdfast.runtime.worker.context import WorkerContext

_WRITER = "the host's writer"


class Mends(Protocol):
    """The second holders of a run, as a restore uses them."""

    @property
    def has_holders(self) -> bool:
        """Whether the run has a second holder; the same on all workers."""

    def steps(self) -> frozenset[int]:
        """Return the steps that any holder has; a useless holder is not used again."""

    def mend(self, step: int) -> MendResult | None:
        """Make a step whole; return None if it cannot be."""


def mends_of(context: WorkerContext, memory: AgentMemory) -> Mends:
    """Return the mends of a run: by the host's writer, or here if there is no agent."""
    config, report = context.config, ContextReport(context)
    store, local = context.open_store(), local_terms(config)
    is_there = local is not None and local.directory.is_dir()
    nearby = mirrors(store, local.directory if local and is_there else None, config.run_id)
    copies = (*nearby, *mirrors(store, config.options.repair_from, config.run_id))
    if context.ask_agent is None:
        return Mender(report, copies)
    return OrderedMends(config, context.ask_agent, (memory, *copies), report)


class OrderedMends(KnownHolders[Holder]):
    """The second holders of a run, as a worker with an agent uses them."""

    def __init__(
        self,
        config: WorkerConfig,
        ask_agent: Callable[[dict[str, object]], dict[str, Any]],
        holders: tuple[Holder, ...],
        report: Report,
    ) -> None:
        super().__init__(report, holders)
        self._config = config
        self._ask = ask_agent

    def mend(self, step: int) -> MendResult | None:
        """Have a step made whole; return None if the writer cannot, which tells why."""
        answer = self._ask(self._order(step).as_json())
        found = answer.get("result")
        if found is not None:
            return MendResult(**{**found, "faults": tuple(found["faults"])})
        if answer.get("reason"):
            tell_failure(self._report, _WRITER, step, answer["reason"])
        return None

    def _order(self, step: int) -> MendOrder:
        config = self._config
        return MendOrder(
            step,
            config.run_dir,
            config.run_id,
            config.lease_token,
            config.key_file,
            tuple(Path(h.name) for h in self._holders if isinstance(h, Mirror)),
        )
