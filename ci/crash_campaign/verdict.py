"""The findings after a crash, by processes that know nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from job import KEEP, NEXT_GENERATION, RUN_ID, open_store, same, save_step, state_of
from tally import Tally, Wrong

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store.reader import restore_newest
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.own_steps import OwnSteps
from holdfast.checkpoint.upkeep.retention import prune


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case, where its checkpoints lie, and where to complain about it."""

    tally: Tally
    case: int
    what: str
    run_dir: Path
    seed: int

    def restored_step(self, at_least: int) -> int:
        """Restore as a new process would, complain of each fault; return the step.

        ``at_least`` is the newest step that may not be lost, 0 for none.
        """
        store = open_store(self.run_dir)
        self._visible_is_whole(store)
        restored, _ = restore_newest(store, run_id=RUN_ID)
        found = restored.manifest.step if restored else 0
        if found < at_least:
            self.complain(Wrong.LOST, f"step {at_least} is lost, {found} is there")
        if restored and not same(restored.state, state_of(self.seed, found)):
            self.complain(Wrong.SILENT, f"step {found} has other bytes")
        return found

    def carries_on(self, step: int) -> None:
        """Save ``step`` as the next launch would, and complain of each fault."""
        store = open_store(self.run_dir)
        reasons = [*store.clean_staging(NEXT_GENERATION)]
        try:
            save_step(store, self.seed, step, NEXT_GENERATION)
        except CheckpointError as error:
            self.complain(Wrong.OTHER, f"the next save fails: {error}")
            return
        reasons += prune(OwnSteps(store), KEEP)
        rest = [name for name in store.names() if not name.startswith("step-")]
        if reasons or rest or len(store.steps()) > KEEP.newest:
            self.complain(Wrong.OTHER, f"left behind: {reasons} {rest} {store.steps()}")
        if self.restored_step(0) != step:
            self.complain(Wrong.FALSE, f"the next save said that it had saved step {step}")

    def complain(self, wrong: Wrong, what: str) -> None:
        """Record a fault of this case."""
        self.tally.complain(wrong, self.case, f"{self.what}: {what}")

    def _visible_is_whole(self, store: CheckpointStore) -> None:
        for step in store.steps():
            try:
                store.scan(step).verify()
            except CheckpointError as error:
                self.complain(Wrong.OTHER, f"visible and not whole: {error}")
