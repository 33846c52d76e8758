"""The images of the newest save in memory, as a second holder of its step."""

from __future__ import annotations

from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.mend import Holders, MendResult, mend_step
from holdfast.runtime.committing.held_save import HeldSave

NAME = "snapshots in memory"
"""The holder's name in messages."""


class KeptImages:
    """Mends the step of one save in memory."""

    name = NAME

    def __init__(self, here: CheckpointStore, save: HeldSave) -> None:
        self._here = here
        self._save = save

    def steps(self) -> tuple[int, ...]:
        """Return the step that the images hold."""
        return (self._save.step,)

    def mend(self, step: int) -> MendResult | None:
        """Make the step of the run directory whole; return None if it is another one.

        Raises ``CheckpointError`` if the step cannot be mended.
        """
        if step != self._save.step:
            return None
        holders = Holders(self._here, self._save.as_store(self._here))
        return mend_step(holders, step, run_id=self._save.plan.run_id)
