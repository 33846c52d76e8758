"""How a full disk is answered: by room for one save."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem, PowerCut, Survival
from whole_save import save

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.manifest import EpochMetrics, Header
from holdfast.checkpoint.names import StagingName, step_name
from holdfast.checkpoint.retention import Pruner, Retention, Wanted
from holdfast.checkpoint.store import CheckpointStore

GENERATION = 5
SAVE = StagingName(40, GENERATION, 2)
"""The save that the disk could not take."""


@pytest.fixture
def files() -> SmallDisk:
    return SmallDisk()


@pytest.fixture
def store(files: SmallDisk) -> CheckpointStore:
    return CheckpointStore(Path("/run/job"), files)


def add(store: CheckpointStore, *steps: int, generation: int = 1) -> int:
    """Save steps of one size, and return that size."""
    for step in steps:
        metrics = EpochMetrics.join(1, step, {"loss": step}, {})
        header = Header("run", generation, step)
        save(store, {"weights": np.arange(4000)}, header=header, cursor=metrics.into({}))
    return store.scan(steps[-1]).manifest().nbytes


class SmallDisk(FakeFileSystem):
    """A disk of ``capacity_bytes``; a test may let it be full by quota."""

    number = errno.ENOSPC
    capacity_bytes = 2**30

    def allocate(self, handle: int, size_bytes: int) -> None:
        if self._used() + size_bytes > self.capacity_bytes:
            raise OSError(self.number, "full")
        super().allocate(handle, size_bytes)

    def _used(self) -> int:
        store = self.root / "job" / "checkpoints"
        top = self._directory(store)
        inner = [self._directory(store / name) for name in top.live]
        files = [file for directory in inner for file in directory.live.values()]
        return sum(len(file.live) for file in files)


def leave_staging(store: CheckpointStore, *names: StagingName) -> None:
    for name in names:
        staging = store.staging(name.step, name.generation, name.attempt)
        staging.open()
        store.disk.write_durably(staging.path / "shard-00000-of-00001.h5", [memoryview(b"x" * 99)])


def set_aside(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        target = store.directory / f".bad-{step:012d}-g1-a1"
        store.disk.rename(store.directory / step_name(step), target)


def pruner(store: CheckpointStore, *wanted: Wanted) -> Pruner:
    return Pruner(store, Retention(99, wanted))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_save_that_found_the_disk_full_succeeds_the_second_time(
    store: CheckpointStore, files: SmallDisk, number: int
) -> None:
    size = add(store, 10, 20, 30)
    files.capacity_bytes, files.number = files._used() + size // 2, number
    with pytest.raises(StorageFailed) as failure:
        add(store, 40, generation=GENERATION)
    assert failure.value.is_full

    reasons = pruner(store).make_room(size, SAVE)
    add(store, 40, generation=GENERATION)

    assert store.steps() == (40, 30, 20)
    assert reasons == (f"step 10 is removed: the disk is full, and a save lacks {size} bytes",)


def test_leftovers_go_before_any_step(store: CheckpointStore) -> None:
    add(store, 5, 6, 10, 20, 30)
    dead = [StagingName(40, GENERATION, 1), StagingName(40, 2, 3)]
    leave_staging(store, *dead)
    set_aside(store, 5, 6)
    hidden = store.directory / ".del-000000000010"
    store.disk.rename(store.directory / step_name(10), hidden)

    reasons = pruner(store).make_room(1000, SAVE)

    assert store.names() == (".bad-000000000006-g1-a1", step_name(20), step_name(30))
    assert [reason.split()[0] for reason in reasons] == [".bad-000000000005-g1-a1"]


def test_save_in_flight_and_those_of_later_generations_stay(store: CheckpointStore) -> None:
    add(store, 10)
    alive = [SAVE, StagingName(40, GENERATION + 1, 1)]
    leave_staging(store, StagingName(40, GENERATION, 1), *alive)

    pruner(store).make_room(10**9, SAVE)

    assert store.names() == (*map(str, alive), step_name(10))


def test_newest_two_sound_steps_stay_however_much_is_needed(store: CheckpointStore) -> None:
    add(store, 10, 20, 30, 40)
    store.disk.remove_file(store.directory / step_name(40) / "shard-00000-of-00001.h5")

    reasons = pruner(store).make_room(10**12, SAVE)

    assert store.steps() == (40, 30, 20)
    assert any("step 40 does not verify" in reason for reason in reasons)
    assert any(reason.startswith("step 10 is removed") for reason in reasons)


def crowded() -> tuple[SmallDisk, CheckpointStore]:
    """Return a disk with steps to keep, steps that may go, and leftovers of every kind."""
    files = SmallDisk()
    store = CheckpointStore(Path("/run/job"), files)
    add(store, 4, 5, 10, 20, 30, 40)
    set_aside(store, 4, 5)
    leave_staging(store, StagingName(50, GENERATION, 1))
    store.disk.fsync_directory(store.directory)
    return files, store


def calls_of_making_room() -> range:
    files, store = crowded()
    first = len(files.calls)
    pruner(store).make_room(10**9, SAVE)
    return range(first, len(files.calls))


@pytest.mark.parametrize("survival", list(Survival))
def test_power_cut_while_room_is_made_costs_no_step_that_stays(survival: Survival) -> None:
    for call in calls_of_making_room():
        files, store = crowded()
        files.cut_power_at(call)
        with pytest.raises(PowerCut):
            pruner(store).make_room(10**9, SAVE)

        after = CheckpointStore(Path("/run/job"), files.after_power_cut(survival, call))

        assert {40, 30} <= set(after.steps())
        for step in after.steps():
            after.scan(step).verify()
        pruner(after).make_room(10**9, SAVE)
        assert after.steps() == (40, 30)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_call_that_fails_while_room_is_made_costs_no_step_that_stays(number: int) -> None:
    for call in calls_of_making_room():
        files, store = crowded()
        files.fail_at(call, number)

        pruner(store).make_room(10**9, SAVE)

        assert {40, 30} <= set(store.steps())
        for step in (40, 30):
            store.scan(step).verify()
