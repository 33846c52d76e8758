"""How often a world is repaired without a step, and when to give up."""

from __future__ import annotations

from holdfast.runtime.errors import WorldLost
from holdfast.runtime.options.worker_config import WorkerConfig

MAX_REPAIR_ATTEMPTS = 32
"""Repairs in a row without an applied update, in a small world."""

_REPAIRS_OF_A_DEATH = 2
"""Each death spoils at most as many; all but one of a large world may die one by one."""


class RepairCount:
    """The repairs since the last applied update."""

    def __init__(self, config: WorkerConfig) -> None:
        self._most = max(MAX_REPAIR_ATTEMPTS, _REPAIRS_OF_A_DEATH * len(config.workers))
        self._may_shrink = config.options.shrink
        self.attempts = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether the world is not to be repaired once more."""
        return self.attempts > self._most or not self._may_shrink

    def lost(self) -> WorldLost:
        """Return the error of a world that was given up."""
        return WorldLost(
            f"a member of the world died, and {self.attempts - 1} repairs in a row have not "
            "led to a step; the job must be relaunched"
        )
