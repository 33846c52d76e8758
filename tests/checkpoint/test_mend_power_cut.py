"""The power goes at every single call of a repair: the damaged step or the whole one is there."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from fake_filesystem import FakeFileSystem, PowerCut, Survival
from holders import RUN_ID, STEP, WRITERS, small_state

from holdfast.checkpoint.names import shard_name, step_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, mend_step
from holdfast.checkpoint.store import CheckpointStore, save

RUN_DIR = Path("/run/job")
LOST_SHARD = shard_name(1, WRITERS)
MANY = [(Survival.NAMES, 0), *((Survival.ANYTHING, seed) for seed in range(6))]
SURVIVALS = [(Survival.NOTHING, 0), *(pytest.param(*case, marks=pytest.mark.long) for case in MANY)]


def saved() -> FakeFileSystem:
    filesystem = FakeFileSystem()
    store = CheckpointStore(RUN_DIR, filesystem)
    save(store, small_state(), header=Header(RUN_ID, 2, STEP), writers=WRITERS)
    return filesystem


def damaged() -> FakeFileSystem:
    filesystem = saved()
    directory = RUN_DIR / "checkpoints" / step_name(STEP)
    filesystem.unlink(directory / LOST_SHARD)
    filesystem.fsync_directory(directory)
    return filesystem


@functools.lru_cache
def mirror() -> FakeFileSystem:
    """Return the other holder, which is only read."""
    return saved()


def repair(filesystem: FakeFileSystem) -> None:
    stores = (CheckpointStore(RUN_DIR, files) for files in (filesystem, mirror()))
    mend_step(Holders(*stores), STEP, run_id=RUN_ID)


def calls_of_a_repair() -> range:
    filesystem = damaged()
    first = len(filesystem.calls)
    repair(filesystem)
    return range(first, len(filesystem.calls))


@pytest.mark.parametrize(("survival", "seed"), SURVIVALS)
def test_nothing_is_lost_and_repairing_again_succeeds(survival: Survival, seed: int) -> None:
    for call in calls_of_a_repair():
        filesystem = damaged()
        filesystem.cut_power_at(call)
        with pytest.raises(PowerCut):
            repair(filesystem)

        after = filesystem.after_power_cut(survival, seed + call)

        store = CheckpointStore(RUN_DIR, after)
        names = [name for name in store.names() if not name.startswith(".tmp-")]
        holders = [name for name in names if LOST_SHARD not in after.list(store.directory / name)]
        where = filesystem.calls[-1]
        assert len(holders) == 1, f"call {call}: the damaged step is gone after {where}"
        for name in set(names) - set(holders):
            assert name == step_name(STEP)
            restore(store, STEP)
        repair(after)
        assert restore(store, STEP).manifest.run_id == RUN_ID
