"""A damaged step is made whole from a mirror, by ``holdfast repair``.

Neither of the two is whole: each has a file that the other one lacks.  So a sound file that is
lost on the way is lost for good.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from damages.ways import read_files
from job import RUN_ID, save_step, spoil
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.repair import mend_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.commands.checkpoints import repair
from holdfast.runtime.errors import JobError
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

OLD, NEW, NEXT = 20, 30, 40
MIRROR = "mirror"


class Mend:
    """A mend of the newest step, as a user makes it."""

    name = "repair"
    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self) -> None:
        self._mirrored: dict[str, bytes] = {}

    def prepare(self, folder: Path, seed: int) -> None:
        """Make two steps and a mirror of both; damage the newer one here and there."""
        run_dir = folder / RUN
        store = CheckpointStore(run_dir)
        for step in (OLD, NEW):
            save_step(store, seed, step)
        RunDirectory(run_dir).create_record(RunRecord(RUN_ID, FORMAT, 0.0, 4, 0, 1))
        shutil.copytree(run_dir, folder / MIRROR)
        spoil(store, NEW, shard=0)
        spoil(CheckpointStore(folder / MIRROR), NEW, shard=2)
        self._mirrored = read_files(folder / MIRROR)

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Mend, and say so."""
        arguments = [str(folder / RUN), "--from", str(folder / MIRROR)]
        try:
            repair.main(arguments, standalone_mode=False)
        except JobError as error:
            say(f"refused: {error}")
        except SystemExit as end:
            say(f"failed with exit code {end.code}" if end.code else f"mended {NEW}")

    def judge(self, after: Aftermath) -> None:
        """What was mended is whole; what was not can still be mended."""
        Verdict.of(after, [NEW]).restored_step(max({OLD} | after.steps("mended")))
        if read_files(after.folder / MIRROR) != self._mirrored:
            after.complain(Wrong.LOST, "the mirror has changed")
        here, mirror = CheckpointStore(after.run_dir), CheckpointStore(after.folder / MIRROR)
        try:
            mend_step(here, mirror, NEW, run_id=RUN_ID)
        except CheckpointError as error:
            after.complain(Wrong.LOST, f"it cannot be mended any more: {error}")
            return
        Verdict.of(after).restored_step(NEW)
        Verdict.of(after).carries_on(NEXT, 9)
