"""A run and its mirror are spoilt, and the run is mended: right, or refused and unchanged."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from job import RUN_ID, WRITERS, save_step, state_of
from tally import Tally, Wrong
from whole_save import is_same, save

from damages.ways import NEW, OF_STEPS, OLD, Files, read_files, strike, write_files
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import STORE_NAME, step_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.repair import mend_step
from holdfast.checkpoint.store import CheckpointStore

NAME = "holders"
CASES, SHORT_CASES = 3_500, 150
_BOTH = 0.6
"""The share of cases in which the mirror is damaged as well."""


class DamagedMend:
    """A run directory and its mirror."""

    def __init__(self, root: Path, seed: int, tally: Tally) -> None:
        self._here, self._there = root / "here", root / "there"
        self._seed, self._tally = seed, tally
        store = CheckpointStore(self._here)
        foreign = CheckpointStore(root / "foreign")
        for step in (OLD, NEW):
            save_step(store, seed, step)
            header = Header("foreign", 1, step)
            save(foreign, state_of(seed + 1, step), header=header, writers=WRITERS)
        self._pristine = read_files(store.directory)
        self._foreign = read_files(foreign.directory)

    def run(self, case: int) -> None:
        """Damage both, mend, complain."""
        choose = random.Random(f"{self._seed}/{case}")
        here, there = dict(self._pristine), dict(self._pristine)
        names = strike(here, choose, self._foreign, OF_STEPS)
        if choose.random() < _BOTH:
            names += ["there", *strike(there, choose, self._foreign, OF_STEPS)]
        for folder, files in ((self._here, here), (self._there, there)):
            shutil.rmtree(folder, ignore_errors=True)
            write_files(folder / STORE_NAME, files)
        self._judge(case, " and ".join(names), here, there)

    def _judge(self, case: int, what: str, here: Files, there: Files) -> None:
        complain = self._tally.complain
        try:
            mend_step(CheckpointStore(self._here), CheckpointStore(self._there), NEW, run_id=RUN_ID)
        except CheckpointError as error:
            self._tally.note("refused")
            if _of_step(read_files(self._here / STORE_NAME)) != _of_step(here):
                complain(Wrong.LOST, case, f"{what}: refused, and the step has changed: {error}")
            if _of_step(there) == _of_step(self._pristine) and not _is_foreign(here):
                complain(Wrong.LOST, case, f"{what}: the mirror is whole, and of no use: {error}")
            return
        self._tally.note("mended")
        try:
            restored = restore(CheckpointStore(self._here), NEW, run_id=RUN_ID)
        except CheckpointError as error:
            complain(Wrong.FALSE, case, f"{what}: mended, and not whole: {error}")
            return
        if not is_same(restored.state, state_of(self._seed, NEW)):
            complain(Wrong.SILENT, case, f"{what}: mended to other bytes")
        if read_files(self._there / STORE_NAME) != there:
            complain(Wrong.LOST, case, f"{what}: the mirror has changed")


def _of_step(files: Files) -> Files:
    folder = step_name(NEW) + "/"
    return {path: data for path, data in files.items() if path.startswith(folder)}


def _is_foreign(files: Files) -> bool:
    """Return whether the manifest here is another run's, which is refused."""
    return b'"foreign"' in files.get(f"{step_name(NEW)}/MANIFEST.json", b"")
