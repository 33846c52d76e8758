"""Committed checkpoints are spoilt in seeded ways: never restored, or exactly what was saved.

Two steps of a run lie in memory.  Each case writes them anew, damages them once or more
often, and restores.  The restored state is compared with the saved one.  The refused steps
are compared with the steps that were really changed.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from job import RUN_ID, WRITERS, open_store, same, save_step, state_of
from tally import Tally, Wrong
from whole_save import save

from damages.ways import NEW, OF_STEPS, OLD, Files, read_files, strike, write_files
from holdfast.checkpoint.names import STORE_NAME, step_name
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.record import Header

NAME = "steps"
CASES, SHORT_CASES = 14_000, 1_500


class DamagedSteps:
    """The files of two steps, in memory and as each case makes them."""

    def __init__(self, root: Path, seed: int, tally: Tally) -> None:
        self._run_dir = root / "run"
        self._seed = seed
        self._tally = tally
        store = open_store(root / "run")
        for step in (OLD, NEW):
            save_step(store, seed, step)
        self._pristine = read_files(store.directory)
        foreign = open_store(root / "foreign")
        for step in (OLD, NEW):
            state = state_of(seed + 1, step)
            save(foreign, state, header=Header("foreign", 1, step), writers=WRITERS)
        self._foreign = read_files(foreign.directory)
        self._states = {step: state_of(seed, step) for step in (OLD, NEW)}

    def run(self, case: int) -> None:
        """Damage, restore, complain."""
        choose = random.Random(f"{self._seed}/{case}")
        files = dict(self._pristine)
        names = strike(files, choose, self._foreign, OF_STEPS)
        folder = self._run_dir / STORE_NAME
        shutil.rmtree(folder)
        write_files(folder, files)
        what = " and ".join(names)
        self._tally.note(names[0])
        self._judge(case, what, files)

    def _judge(self, case: int, what: str, files: Files) -> None:
        restored, rejections = restore_newest(open_store(self._run_dir), run_id=RUN_ID)
        found = restored.manifest.step if restored else 0
        complain = self._tally.complain
        if restored and not (found in self._states and same(restored.state, self._states[found])):
            complain(Wrong.SILENT, case, f"{what}: step {found} was restored with other bytes")
        reasons = {rejection.step: rejection.reason for rejection in rejections}
        if any(step > found and not reasons.get(step) for step in visible_steps(files)):
            complain(Wrong.SILENT, case, f"{what}: step {found}, no reason for newer ones")
        whole = [step for step in (OLD, NEW) if self._is_untouched(files, step)]
        if whole and found < max(whole):
            complain(Wrong.LOST, case, f"{what}: step {max(whole)} is whole, got {found}")

    def _is_untouched(self, files: Files, step: int) -> bool:
        folder = step_name(step) + "/"
        return all(
            files.get(path) == data
            for path, data in self._pristine.items()
            if path.startswith(folder)
        )


def visible_steps(files: Files) -> set[int]:
    """Return the steps that a reader sees."""
    return {int(path.split("/")[0][5:]) for path in files if path.startswith("step-")}
