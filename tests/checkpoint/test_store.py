"""Staging is invisible, commits are whole, the first one wins."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem, Survival

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointUnreadable,
    CommitRefused,
    StagingExists,
    StorageFailed,
)
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.record import Header, ShardRecord
from holdfast.checkpoint.store import CheckpointStore, Staging, save
from holdfast.checkpoint.tensor import ShardLayout, Tensor, specs_of

HEADER = Header("run", 7, 30)


def state_of(value: float) -> dict[str, Tensor]:
    return {"a": np.full(3000, value, np.float32), "b": np.array(value)}


LAYOUT = ShardLayout(specs_of(state_of(0.0)), 2)


def staged(
    store: CheckpointStore, value: float, *, attempt: int = 1, header: Header = HEADER
) -> tuple[Staging, Manifest]:
    staging = store.stage(header.step, header.generation, attempt)
    records = [staging.write_shard(state_of(value), LAYOUT, writer, header) for writer in range(2)]
    return staging, assembled(records, header)


def assembled(records: list[ShardRecord], header: Header = HEADER) -> Manifest:
    return Manifest.assemble(LAYOUT, records, header=header, cursor={}, numerics={})


def value_of(store: CheckpointStore, step: int) -> float:
    return float(restore(store, step).state["b"])


def test_staging_is_invisible_until_commit(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)
    before = store.steps()

    path = staging.commit(manifest)

    assert before == ()
    assert store.steps() == (30,)
    assert path == store.directory / "step-000000000030"
    assert store.names() == ("step-000000000030",)
    assert value_of(store, 30) == 1.0


def test_checkpoint_holds_its_shards_and_manifest_privately(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)

    path = staging.commit(manifest)

    assert sorted(item.name for item in path.iterdir()) == [
        "MANIFEST.json",
        "shard-00000-of-00002.h5",
        "shard-00001-of-00002.h5",
    ]
    assert {stat.S_IMODE(item.stat().st_mode) for item in path.iterdir()} == {0o600}
    assert {stat.S_IMODE(item.stat().st_mode) for item in (path, path.parent)} == {0o700}


def test_same_attempt_is_staged_once(store: CheckpointStore) -> None:
    store.stage(30, 7, 1)

    with pytest.raises(StagingExists, match="use attempt 2"):
        store.stage(30, 7, 1)

    store.stage(30, 7, 2)
    assert store.next_attempt(HEADER) == 3


def test_writers_need_not_wait_for_the_staging_directory(store: CheckpointStore) -> None:
    stores = [CheckpointStore(store.directory.parent) for _ in range(2)]

    records = [
        stores[writer].staging(30, 7, 1).write_shard(state_of(2.0), LAYOUT, writer, HEADER)
        for writer in range(2)
    ]
    store.staging(30, 7, 1).commit(assembled(records))

    assert value_of(store, 30) == 2.0


def test_writers_may_write_at_the_same_time(store: CheckpointStore) -> None:
    staging = store.stage(30, 7, 1)
    state = state_of(3.0)
    layout = ShardLayout(specs_of(state), 6)
    records: list[ShardRecord] = []

    def write(writer: int) -> None:
        records.append(staging.write_shard(state, layout, writer, HEADER))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = Manifest.assemble(layout, records, header=HEADER, cursor={}, numerics={})
    staging.commit(manifest)

    assert value_of(store, 30) == 3.0


def test_shard_is_written_once(store: CheckpointStore) -> None:
    staging, _ = staged(store, 1.0)

    with pytest.raises(StorageFailed, match="EEXIST"):
        staging.write_shard(state_of(2.0), LAYOUT, 0, HEADER)


def test_first_commit_of_a_step_wins(store: CheckpointStore) -> None:
    first, second = staged(store, 1.0, attempt=1), staged(store, 2.0, attempt=2)
    paths = [first[0].commit(first[1])]

    paths.append(second[0].commit(second[1]))

    assert paths[0] == paths[1]
    assert value_of(store, 30) == 1.0
    assert store.names() == ("step-000000000030",)


def test_damaged_step_is_moved_aside_by_the_next_commit(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)
    path = staging.commit(manifest)
    os.truncate(path / "shard-00001-of-00002.h5", 100)

    again, manifest = staged(store, 2.0, attempt=2)
    again.commit(manifest)

    assert value_of(store, 30) == 2.0
    assert store.names() == (".bad-000000000030-g7-a2", "step-000000000030")


def test_step_that_cannot_be_read_is_neither_trusted_nor_moved() -> None:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    staging, manifest = staged(store, 1.0)
    staging.commit(manifest)
    again, manifest = staged(store, 2.0, attempt=2)
    probe = len(filesystem.calls)
    again.commit(manifest)
    calls = filesystem.calls[probe:]
    reading = probe + next(
        i for i, text in enumerate(calls) if text.startswith("open_read") and "step-" in text
    )

    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    staging, manifest = staged(store, 1.0)
    staging.commit(manifest)
    again, manifest = staged(store, 2.0, attempt=2)
    filesystem.fail_at(reading, 5)
    with pytest.raises(CheckpointUnreadable):
        again.commit(manifest)

    assert value_of(store, 30) == 1.0


def test_step_of_another_run_is_not_taken_for_ours(store: CheckpointStore) -> None:
    save(store, state_of(1.0), header=Header("theirs", 1, 30))
    staging, manifest = staged(store, 2.0)

    with pytest.raises(CommitRefused, match="belongs to run theirs, not to run"):
        staging.commit(manifest)

    assert value_of(store, 30) == 1.0


def test_missing_shard_is_not_committed(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)
    (staging.path / "shard-00001-of-00002.h5").unlink()

    with pytest.raises(CheckpointError, match="shard-00001-of-00002"):
        staging.commit(manifest)

    assert store.steps() == ()


def test_shard_of_another_size_is_not_committed(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)
    os.truncate(staging.path / "shard-00001-of-00002.h5", 5)

    with pytest.raises(CommitRefused, match="shard 1 of step 30 has 5 bytes, its writer reported"):
        staging.commit(manifest)


@pytest.mark.parametrize("header", [Header("run", 7, 31), Header("run", 8, 30)])
def test_parts_of_another_save_are_refused(store: CheckpointStore, header: Header) -> None:
    staging, _ = staged(store, 1.0)
    _, other = staged(store, 2.0, header=header)

    with pytest.raises(CommitRefused, match="stage it in a directory of its own"):
        staging.commit(other)
    with pytest.raises(CommitRefused, match="stage it in a directory of its own"):
        staging.write_shard(state_of(1.0), LAYOUT, 0, header)


def test_abandoned_staging_is_gone(store: CheckpointStore) -> None:
    staging, _ = staged(store, 1.0)

    staging.abandon()
    staging.abandon()

    assert store.names() == ()


def test_staging_of_dead_generations_is_cleaned(store: CheckpointStore) -> None:
    for generation in (5, 6, 7):
        store.stage(30, generation, 1)
    save(store, state_of(1.0), header=Header("run", 2, 20))

    reasons = store.clean_staging(7)

    assert reasons == ()
    assert store.names() == (".tmp-000000000030-g7-a1", "step-000000000020")


def test_steps_are_newest_first_and_nothing_else(store: CheckpointStore) -> None:
    for step in (5, 100, 20):
        save(store, state_of(step), header=Header("run", 1, step))
    (store.directory / "step-000000000999").write_text("a file")
    (store.directory / "step-7").mkdir()
    (store.directory / "notes").mkdir()

    assert store.steps() == (100, 20, 5)


def test_steps_of_a_large_store_cost_one_call() -> None:
    files = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), files)
    store.make_directory()
    for step in range(10_000):
        files.mkdir(store.directory / step_name(step))
    before = len(files.calls)

    steps = store.steps()

    assert (len(steps), steps[0]) == (10_000, 9999)
    assert files.calls[before:] == [f"list {store.directory}"]


def test_directory_that_somebody_removed_is_made_again(store: CheckpointStore) -> None:
    store.stage(10, 1, 1).abandon()
    assert not store.take_removal(), "it was made, and not removed"
    store.directory.rmdir()

    save(store, state_of(1.0), header=HEADER)

    assert store.steps() == (30,)
    assert [store.take_removal(), store.take_removal()] == [True, False]


def test_directory_that_two_threads_make_was_not_removed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, synced = store.disk.fsync_parent, list[Path]()
    second = threading.Thread(target=store.make_directory)

    def fsync_parent(path: Path) -> None:
        synced.append(path)
        if synced == [path]:
            second.start()
        plain(path)

    monkeypatch.setattr(store.disk, "fsync_parent", fsync_parent)

    store.make_directory()
    second.join(60)

    assert not second.is_alive()
    assert synced == [store.directory.parent, store.directory], "the second one found both"
    assert not store.take_removal()


def test_run_directory_that_the_journal_has_made_again_is_made_durable() -> None:
    files = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), files)
    save(store, state_of(1.0), header=HEADER)
    store.disk.remove_tree(Path("/run/job"))
    store.disk.fsync_directory(Path("/run"))
    files.mkdir(Path("/run/job"))

    save(store, state_of(1.0), header=HEADER)

    assert store.take_removal()
    after = files.after_power_cut(Survival.NOTHING)
    assert CheckpointStore(Path("/run/job"), after).steps() == (30,)


class FailingFiles(FakeFileSystem):
    """Fails calls by their operation and the name that they are about, in this order."""

    coming: tuple[str, ...] = ()

    def _enter(self, operation: str, path: Path) -> None:
        if self.coming and f"{operation} {path.name}".startswith(self.coming[0]):
            self.coming = self.coming[1:]
            self.fail_at(len(self.calls), errno.EIO)
        super()._enter(operation, path)


def test_step_whose_rename_could_not_be_taken_back_is_not_relied_on() -> None:
    files = FailingFiles()
    store = CheckpointStore(Path("/run/job"), files)
    save(store, state_of(1.0), header=Header("run", 7, 10))
    files.coming = ("fsync_directory checkpoints", "rename_noreplace .tmp-000000000030")

    with pytest.raises(StorageFailed):
        save(store, state_of(2.0), header=HEADER)
    assert (files.coming, store.steps()) == ((), (30, 10))
    save(store, state_of(2.0), header=HEADER)

    after = files.after_power_cut(Survival.NOTHING)
    assert CheckpointStore(Path("/run/job"), after).steps() == (30, 10)


def test_step_that_was_to_give_way_comes_back_if_the_save_fails() -> None:
    files = FailingFiles()
    store = CheckpointStore(Path("/run/job"), files, first_stays=False)
    save(store, state_of(1.0), header=HEADER)
    files.coming = ("fsync_directory checkpoints",)

    with pytest.raises(StorageFailed):
        save(store, state_of(2.0), header=Header("run", 8, 30))

    assert store.names() == ("step-000000000030",)
    assert restore(store, 30).state["b"] == 1.0


def test_directory_that_became_a_link_fails_the_save(
    store: CheckpointStore, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    store.directory.parent.mkdir()
    store.directory.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StorageFailed, match="checkpoints: Not a directory"):
        save(store, state_of(1.0), header=HEADER)

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_run_directory_may_be_a_link(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    store.directory.parent.symlink_to(tmp_path / "scratch")

    save(store, state_of(1.0), header=HEADER)

    assert value_of(store, 30) == 1.0


def test_failed_save_in_one_process_leaves_no_staging() -> None:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    save(store, state_of(1.0), header=Header("run", 1, 10))
    calls = len(filesystem.calls)
    filesystem.fail_at(calls + 9, 28)

    with pytest.raises(StorageFailed):
        save(store, state_of(2.0), header=HEADER)

    restored, rejections = restore_newest(store)
    assert restored is not None
    assert (restored.manifest.step, rejections) == (10, ())
    assert store.names() == ("step-000000000010",)


def test_listing_and_restoring_need_no_hdf5() -> None:
    """The supervisor and the command line list steps, and may not load h5py."""
    program = (
        "import sys; import holdfast.checkpoint.reader; "
        "import holdfast.checkpoint.retention; "
        "sys.exit('h5py' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
