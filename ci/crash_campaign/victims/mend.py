"""A damaged step is made whole from a mirror: by a job, and by ``holdfast repair``.

Neither holder is whole: each has a part that the other one lacks.  So a sound part that is
lost on the way is lost for good.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from damages.ways import read_files
from host import plan_of
from job import RUN_ID, open_store, save_step, spoil
from quiet_report import QuietReport
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.repair import Holders, mend_step
from holdfast.runtime.cli.checkpoints import repair
from holdfast.runtime.errors import JobError
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.mending import Mender, mirrors

OLD, NEW, NEXT = 20, 30, 40
MIRROR = "mirror"


class Mend:
    """A mend of the newest step, in one of two ways."""

    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self, name: str, mend: Callable[[Path, Say], None]) -> None:
        self.name = name
        self._mend = mend
        self._mirrored: dict[str, bytes] = {}

    def prepare(self, folder: Path, seed: int) -> None:
        """Make two steps and a mirror of both; damage the newer one here and there."""
        run_dir = folder / RUN
        store = open_store(run_dir)
        for step in (OLD, NEW):
            save_step(store, seed, step)
        RunDirectory(run_dir).create_record(RunRecord(RUN_ID, FORMAT, 0.0, 4, 0, 1))
        shutil.copytree(run_dir, folder / MIRROR)
        spoil(store, NEW, shard=0)
        spoil(open_store(folder / MIRROR), NEW, shard=2)
        self._mirrored = read_files(folder / MIRROR)

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Mend, and say so."""
        self._mend(folder, say)

    def judge(self, after: Aftermath) -> None:
        """What was mended is whole; what was not can still be mended."""
        Verdict.of(after, [NEW]).restored_step(max({OLD} | after.steps("mended")))
        if read_files(after.folder / MIRROR) != self._mirrored:
            after.complain(Wrong.LOST, "the mirror has changed")
        holders = Holders(open_store(after.run_dir), open_store(after.folder / MIRROR))
        try:
            mend_step(holders, NEW, run_id=RUN_ID)
        except CheckpointError as error:
            after.complain(Wrong.LOST, f"it cannot be mended any more: {error}")
            return
        Verdict.of(after).restored_step(NEW)
        Verdict.of(after).carries_on(NEXT, 9)


def _as_a_job(folder: Path, say: Say) -> None:
    """Mend as a restore does."""
    store = plan_of(folder / RUN).open_store()
    mender = Mender(QuietReport(), mirrors(store, folder / MIRROR, RUN_ID))
    if not mender.steps():
        say("failed to read the mirror")
        return
    result = mender.mend(NEW)
    say(f"mended {NEW}" if result is not None and result.faults else "failed to mend")


def _by_command(folder: Path, say: Say) -> None:
    """Mend as a user does."""
    arguments = [str(folder / RUN), "--from", str(folder / MIRROR)]
    try:
        repair.main(arguments, standalone_mode=False)
    except JobError as error:
        say(f"refused: {error}")
    except SystemExit as end:
        say(f"failed with exit code {end.code}" if end.code else f"mended {NEW}")


MENDS = (Mend("mend", _as_a_job), Mend("repair", _by_command))
