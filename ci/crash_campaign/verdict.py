"""The findings after a crash, by code that knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from job import KEEP, NEXT_GENERATION, RUN_ID, save_step, state_of
from tally import Wrong
from victim import Aftermath
from whole_save import is_same

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Verdict:
    """A run directory after a crash, and where to complain of it.

    ``damaged`` are steps that were spoilt before, and ``foreign`` those of another run: both
    may be visible without being whole.
    """

    after: Aftermath
    run_dir: Path
    run_id: str = RUN_ID
    damaged: frozenset[int] = frozenset()

    @staticmethod
    def of(after: Aftermath, damaged: Iterable[int] = ()) -> Verdict:
        """Return the verdict on the victim's run directory."""
        return Verdict(after, after.run_dir, damaged=frozenset(damaged))

    def restored_step(self, at_least: int) -> int:
        """Restore as a new process would, complain of each fault; return the step.

        ``at_least`` is the newest step that may not be lost, 0 for none.
        """
        store = CheckpointStore(self.run_dir)
        self._visible_is_whole(store)
        restored, _ = restore_newest(store, run_id=self.run_id)
        found = restored.manifest.step if restored else 0
        if found < at_least:
            self.complain(Wrong.LOST, f"step {at_least} is lost, {found} is there")
        if restored and not is_same(restored.state, state_of(self.after.seed, found)):
            self.complain(Wrong.SILENT, f"step {found} has other bytes")
        return found

    def has(self, *steps: int) -> None:
        """Complain of each step that cannot be restored."""
        store = CheckpointStore(self.run_dir)
        for step in steps:
            try:
                restored = restore(store, step, run_id=self.run_id)
            except CheckpointError as error:
                self.complain(Wrong.LOST, f"step {step} is lost: {error}")
                continue
            if not is_same(restored.state, state_of(self.after.seed, step)):
                self.complain(Wrong.SILENT, f"step {step} has other bytes")

    def carries_on(self, step: int, generation: int = NEXT_GENERATION) -> None:
        """Save ``step`` as the next launch would, and complain of each fault."""
        store = CheckpointStore(self.run_dir)
        reasons = [*store.clean_staging(generation)]
        try:
            save_step(store, self.after.seed, step, generation)
        except CheckpointError as error:
            self.complain(Wrong.OTHER, f"the next save fails: {error}")
            return
        reasons += Pruner(store, KEEP, self.run_id, self.damaged).prune()
        rest = [name for name in store.names() if not name.startswith(("step-", ".bad-"))]
        if reasons or rest or len(set(store.steps()) - self.damaged) > KEEP.newest:
            self.complain(Wrong.OTHER, f"left behind: {reasons} {rest} {store.steps()}")
        if self.restored_step(0) != step:
            self.complain(Wrong.FALSE, f"the next save said that it had saved step {step}")

    def complain(self, wrong: Wrong, what: str) -> None:
        """Record a fault of this case."""
        self.after.complain(wrong, what)

    def _visible_is_whole(self, store: CheckpointStore) -> None:
        for step in set(store.steps()) - self.damaged:
            try:
                store.scan(step).verify()
            except CheckpointError as error:
                self.complain(Wrong.OTHER, f"visible and not whole: {error}")
