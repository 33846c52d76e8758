"""A mend opens each file a few times, and looks at the step once more before it moves it."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, mend_step
from holdfast.checkpoint.store import CheckpointStore, save

STEP = 40
RUN_ID = "4f0c2d"
TENSORS = 100


class CountingFiles(LocalFileSystem):
    """Counts how often each shard is opened for reading."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: Counter[str] = Counter()

    def open_read(self, path: Path) -> int:
        self.opened[f"{path.parent.name}/{path.name}"] += path.suffix == ".h5"
        return super().open_read(path)


def test_file_is_not_opened_for_each_piece(tmp_path: Path) -> None:
    state = {f"t{number}": np.arange(50) * number for number in range(TENSORS)}
    save(CheckpointStore(tmp_path / "here"), state, header=Header(RUN_ID, 2, STEP), writers=2)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    here, there = CountingFiles(tmp_path / "here"), CountingFiles(tmp_path / "there")
    stores = CheckpointStore(tmp_path / "here", here), CheckpointStore(tmp_path / "there", there)
    for shard in (stores[0].directory / step_name(STEP)).glob("*.h5"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        shard.write_bytes(content)

    found = mend_step(Holders(*stores), STEP, run_id=RUN_ID)

    assert TENSORS / 4 < found.taken < found.parts - TENSORS / 4, "parts come from both"
    shards = {f"{step_name(STEP)}/shard-{number:05d}-of-00002.h5" for number in range(2)}
    assert {name: there.opened[name] for name in shards} == dict.fromkeys(shards, 2), (
        "once for the inventory, and once to take parts"
    )
    staged = [name for name in here.opened if name not in shards]
    assert {name: here.opened[name] for name in shards} == dict.fromkeys(shards, 4), (
        "twice as in the other holder, then for the size and the bytes of the mended step"
    )
    assert [here.opened[name] for name in staged if here.opened[name]] == [1, 1], "at the commit"


def test_step_that_was_saved_meanwhile_stays(tmp_path: Path) -> None:
    here, there = CheckpointStore(tmp_path / "here"), CheckpointStore(tmp_path / "there")
    state = {"a": np.arange(50)}
    save(there, state, header=Header(RUN_ID, 2, STEP))
    holders = Holders(here, there, lambda: str(save(here, state, header=Header(RUN_ID, 3, STEP))))

    found = mend_step(holders, STEP, run_id=RUN_ID)

    assert (found.bad_name, found.taken) == (None, 0)
    assert here.names() == (step_name(STEP),)
    assert here.scan(STEP).verify().generation == 3
