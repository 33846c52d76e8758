"""Committed checkpoints are spoilt in seeded ways: never restored, or exactly what was saved.

Two steps of a run lie in memory.  Each case writes them anew, damages them once or more
often, and restores.  The restored state is compared with the saved one.  The refused steps
are compared with the steps that were really changed.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from job import RUN_ID, WRITERS, save_step, state_of
from tally import Tally, Wrong
from whole_save import is_same, save

from damages.ways import NEW, OF_STEPS, OLD, Files, read_files, strike, write_files
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import STORE_NAME, step_name
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.store import CheckpointStore

NAME = "steps"
CASES, SHORT_CASES = 14_000, 1_500


class DamagedSteps:
    """The files of two steps, in memory and as each case makes them."""

    def __init__(self, root: Path, seed: int, tally: Tally) -> None:
        self._run_dir = root / "run"
        self._seed = seed
        self._tally = tally
        store = CheckpointStore(root / "run")
        self._states = {step: state_of(seed, step) for step in (OLD, NEW)}
        foreign = CheckpointStore(root / "foreign")
        for step in self._states:
            save_step(store, seed, step)
            state = state_of(seed + 1, step)
            save(foreign, state, header=Header("foreign", 1, step), writers=WRITERS)
        self._pristine, self._foreign = read_files(store.directory), read_files(foreign.directory)

    def run(self, case: int) -> None:
        """Damage, restore, complain."""
        choose = random.Random(f"{self._seed}/{case}")
        files = dict(self._pristine)
        names = strike(files, choose, self._foreign, OF_STEPS)
        folder = self._run_dir / STORE_NAME
        shutil.rmtree(folder)
        write_files(folder, files)
        self._tally.note(names[0])
        self._judge(case, " and ".join(names), files)

    def _judge(self, case: int, what: str, files: Files) -> None:
        restored, rejections = restore_newest(CheckpointStore(self._run_dir), run_id=RUN_ID)
        found = restored.manifest.step if restored else 0
        complain = self._tally.complain
        if restored and not (
            found in self._states and is_same(restored.state, self._states[found])
        ):
            complain(Wrong.SILENT, case, f"{what}: step {found} was restored with other bytes")
        reasons = {rejection.step: rejection.reason for rejection in rejections}
        visible = {int(path.split("/")[0][5:]) for path in files if path.startswith("step-")}
        if any(step > found and not reasons.get(step) for step in visible):
            complain(Wrong.SILENT, case, f"{what}: step {found}, no reason for newer ones")
        spoilt = {p.split("/")[0] for p, d in self._pristine.items() if files.get(p) != d}
        whole = [step for step in (OLD, NEW) if step_name(step) not in spoilt]
        if whole and found < max(whole):
            complain(Wrong.LOST, case, f"{what}: step {max(whole)} is whole, got {found}")
