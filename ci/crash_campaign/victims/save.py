"""The checkpoint layer alone: restore, save, acknowledge, prune."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from job import KEEP, RUN_ID, save_images, save_step, state_of
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion
from whole_save import is_same

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.names import removed_name, step_name
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.store import CheckpointStore

HALF_REMOVED, OLDEST, OLD, NEW, NEXT = 5, 10, 20, 30, 40


class Save:
    """A relaunched job as one process; it saves in one of two ways."""

    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self, name: str, save: Callable[[CheckpointStore, int, int], None]) -> None:
        self.name = name
        self._save = save

    def prepare(self, folder: Path, seed: int) -> None:
        """Make two steps, and the rest of a third whose removal was cut short."""
        store = CheckpointStore(folder / RUN)
        for step in (HALF_REMOVED, OLDEST, OLD):
            save_step(store, seed, step)
        hidden = store.directory / removed_name(HALF_REMOVED)
        (store.directory / step_name(HALF_REMOVED)).rename(hidden)
        sorted(hidden.iterdir())[0].unlink()

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Do what a relaunched job does, in the order in which it does it."""
        store = CheckpointStore(folder / RUN)
        try:
            restored, _ = restore_newest(store, run_id=RUN_ID)
        except CheckpointError as error:
            say(f"failed to restore: {error}")
            return
        if restored and not is_same(restored.state, state_of(seed, restored.manifest.step)):
            say("restored other bytes")
        try:
            self._save(store, seed, NEW)
        except CheckpointError as error:
            say(f"failed to save: {error}")
            return
        say(f"saved {NEW}")
        for reason in Pruner(store, KEEP).prune():
            say(f"left: {reason}")

    def judge(self, after: Aftermath) -> None:
        """The newest acknowledged step is there, or a newer one; and the next launch saves."""
        if after.has_said("restored other bytes"):
            after.complain(Wrong.SILENT, "the victim restored other bytes")
        verdict = Verdict.of(after)
        verdict.restored_step(max({OLD} | after.steps("saved")))
        verdict.carries_on(NEXT)


SAVES = (Save("save", save_step), Save("images", save_images))
