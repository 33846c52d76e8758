"""Staging, commit, listing and removal: visible means complete."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem, Survival
from whole_save import save

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointUnreadable,
    CommitRefused,
    StorageFailed,
)
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import GIVES_WAY, Header, Manifest, ShardRecord
from holdfast.checkpoint.names import StagingName, step_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore, Staging, hide, remove_hidden
from holdfast.checkpoint.tensor import ShardLayout, Tensor, specs_of

HEADER = Header("run", 7, 30)

SAVED_TWICE = 30

NAME = StagingName(30, 7, 1)

LOOKS = ("list", "identity")


def state_of(value: float) -> dict[str, Tensor]:
    return {"a": np.full(3000, value, np.float32), "b": np.array(value)}


LAYOUT = ShardLayout(specs_of(state_of(0.0)), 2)


def staged(
    store: CheckpointStore, value: float, *, attempt: int = 1, header: Header = HEADER
) -> tuple[Staging, Manifest]:
    staging = store.staging(header.step, header.generation, attempt)
    records = [staging.write_shard(state_of(value), LAYOUT, writer, header) for writer in range(2)]
    return staging, assembled(records, header)


def assembled(records: list[ShardRecord], header: Header = HEADER) -> Manifest:
    return Manifest.assemble(LAYOUT, records, header=header, cursor={}, numerics={})


def value_of(store: CheckpointStore, step: int) -> float:
    return float(restore(store, step).state["b"])


class FailingFiles(FakeFileSystem):
    """Fails calls by their operation and the name that they are about, in this order."""

    coming: tuple[str, ...] = ()

    def _enter(self, operation: str, path: Path) -> None:
        if self.coming and f"{operation} {path.name}".startswith(self.coming[0]):
            self.coming = self.coming[1:]
            self.fail_at(len(self.calls), errno.EIO)
        super()._enter(operation, path)


def test_staging_is_invisible_until_commit(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)
    before = store.steps()

    path = staging.commit(manifest)

    assert before == ()
    assert store.steps() == (30,)
    assert path == store.directory / "step-000000000030"
    assert store.names() == ("step-000000000030",)
    assert value_of(store, 30) == 1.0


def test_damaged_step_is_moved_aside_by_the_next_commit(store: CheckpointStore) -> None:
    staging, manifest = staged(store, 1.0)
    path = staging.commit(manifest)
    os.truncate(path / "shard-00001-of-00002.h5", 100)

    again, manifest = staged(store, 2.0, attempt=2)
    again.commit(manifest)

    assert value_of(store, 30) == 2.0
    assert store.names() == (".bad-000000000030-g7-a2", "step-000000000030")


def test_step_that_cannot_be_read_is_neither_trusted_nor_moved() -> None:
    files = FailingFiles()
    store = CheckpointStore(Path("/run/job"), files)
    save(store, state_of(1.0), header=HEADER)
    again, manifest = staged(store, 2.0, attempt=2)
    files.coming = ("open_read MANIFEST.json",)

    with pytest.raises(CheckpointUnreadable):
        again.commit(manifest)

    assert value_of(store, 30) == 1.0


def test_step_of_another_run_is_not_taken_for_ours(store: CheckpointStore) -> None:
    save(store, state_of(1.0), header=Header("theirs", 1, 30))
    staging, manifest = staged(store, 2.0)

    with pytest.raises(CommitRefused, match="belongs to run theirs, not to run"):
        staging.commit(manifest)

    assert value_of(store, 30) == 1.0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (os.unlink, "shard-00001-of-00002"),
        (lambda path: os.truncate(path, 5), "shard 1 of step 30 has 5 bytes, its writer reported"),
    ],
    ids=["missing", "of another size"],
)
def test_shard_that_is_not_whole_is_not_committed(
    store: CheckpointStore, spoil: Callable[[Path], object], words: str
) -> None:
    staging, manifest = staged(store, 1.0)
    spoil(staging.path / "shard-00001-of-00002.h5")

    with pytest.raises(CheckpointError, match=words):
        staging.commit(manifest)

    assert store.steps() == ()


@pytest.mark.parametrize("header", [Header("run", 7, 31), Header("run", 8, 30)])
def test_parts_of_another_save_are_refused(store: CheckpointStore, header: Header) -> None:
    staging, _ = staged(store, 1.0)
    _, other = staged(store, 2.0, header=header)

    with pytest.raises(CommitRefused, match="stage it in a directory of its own"):
        staging.commit(other)
    with pytest.raises(CommitRefused, match="stage it in a directory of its own"):
        staging.write_shard(state_of(1.0), LAYOUT, 0, header)


def test_staging_of_dead_generations_is_cleaned(store: CheckpointStore) -> None:
    for generation in (5, 6, 7):
        store.staging(30, generation, 1).open()
    save(store, state_of(1.0), header=Header("run", 2, 20))

    reasons = store.clean_staging(7)

    assert reasons == ()
    assert store.names() == (".tmp-000000000030-g7-a1", "step-000000000020")


def test_steps_are_newest_first_and_nothing_else(store: CheckpointStore) -> None:
    for step in (5, 100, 20):
        save(store, state_of(step), header=Header("run", 1, step))
    (store.directory / "step-000000000999").write_text("a file")
    for name in (
        "step-12",
        "step-0000000000012",
        "step-00000000001x",
        "STEP-000000000012",
        "notes",
    ):
        (store.directory / name).mkdir()
    for name in ("step-000000000012 ", "step-٠٠٠٠٠٠٠٠٠٠١٢", "step--00000000012"):
        (store.directory / name).mkdir()

    assert store.steps() == (100, 20, 5)


def test_directory_that_somebody_removed_is_made_again(store: CheckpointStore) -> None:
    staging = store.staging(10, 1, 1)
    staging.open()
    staging.abandon()
    assert not store.take_removal(), "it was made, and not removed"
    store.directory.rmdir()

    save(store, state_of(1.0), header=HEADER)

    assert store.steps() == (30,)
    assert [store.take_removal(), store.take_removal()] == [True, False]


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
    store = CheckpointStore(Path("/run/job"), files)
    save(store, state_of(1.0), header=HEADER, cursor={GIVES_WAY: True})
    files.coming = ("fsync_directory checkpoints",)

    with pytest.raises(StorageFailed):
        save(store, state_of(2.0), header=Header("run", 8, 30))

    assert store.names() == ("step-000000000030",)
    assert restore(store, 30).state["b"] == 1.0


def test_listing_and_restoring_need_no_hdf5() -> None:
    """The client and the command line list steps, and may not load h5py."""
    program = (
        "import sys; import holdfast.checkpoint.reader; "
        "import holdfast.checkpoint.retention; "
        "sys.exit('h5py' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


KERNEL = np.arange(3000, dtype=np.float32).reshape(100, 30)


def state_with(value: float) -> dict[str, Tensor]:
    return {"bias": np.full(777, value, np.float16), "kernel": KERNEL, "scalar": np.array(7)}


def save_twice(
    store: CheckpointStore, first: dict[str, Tensor], later: dict[str, Tensor], writers: int
) -> tuple[str, ...]:
    """Save a step with three writers, then with other ones; return what is told."""
    save(store, first, header=Header("run", 2, SAVED_TWICE), writers=3)
    save(store, later, header=Header("run", 9, SAVED_TWICE), writers=writers)
    assert store.steps() == (SAVED_TWICE,)
    assert store.scan(SAVED_TWICE).manifest().generation == 2
    return store.disk.new_downgrades(set())


@pytest.mark.parametrize("writers", [1, 2, 3, 5])
def test_same_state_is_acknowledged_without_a_word(store: CheckpointStore, writers: int) -> None:
    """After a death the survivors save the same step with fewer writers."""
    assert save_twice(store, state_with(1.0), state_with(1.0), writers) == ()


@pytest.mark.parametrize("writers", [1, 2, 3, 5])
def test_other_state_is_told_and_the_first_stays(store: CheckpointStore, writers: int) -> None:
    (told,) = save_twice(store, state_with(1.0), state_with(2.0), writers)

    assert told.startswith(
        "step 30 was saved before, by generation 2, and generation 9 has another state: 'bias';"
    )
    assert float(restore(store, SAVED_TWICE).state["bias"][0]) == 1.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kernel": KERNEL + (KERNEL[99, 28] < KERNEL)}, "another state: 'kernel';"),
        ({"kernel": KERNEL.reshape(30, 100)}, "'kernel'"),
        (
            {f"extra {i}": np.zeros(3) for i in range(4)},
            "'extra 0', 'extra 1', 'extra 2' and 1 more",
        ),
    ],
    ids=["one element", "another shape", "tensors of one save alone"],
)
def test_what_differs_is_named(
    store: CheckpointStore, change: dict[str, Tensor], named: str
) -> None:
    (told,) = save_twice(store, state_with(1.0), state_with(1.0) | change, 2)

    assert named in told


@pytest.fixture
def fake_files() -> FakeFileSystem:
    return FakeFileSystem()


@pytest.fixture
def fake_store(fake_files: FakeFileSystem) -> CheckpointStore:
    return CheckpointStore(Path("/run/job"), fake_files)


@pytest.mark.parametrize("remover", ["the next generation", "its own"])
def test_staging_has_lost_its_name_before_its_first_file_goes(
    fake_store: CheckpointStore, fake_files: FakeFileSystem, remover: str
) -> None:
    staging, _ = staged(fake_store, 0.0)
    before = len(fake_files.calls)

    if remover == "its own":
        staging.abandon()
    else:
        assert fake_store.clean_staging(8) == ()

    changes = [call for call in fake_files.calls[before:] if call.split()[0] not in LOOKS]
    assert changes[0] == f"rename_noreplace {fake_store.directory / NAME.removed_name}"
    assert fake_store.names() == ()


def test_late_rename_of_a_killed_process_makes_no_hollow_step(
    fake_store: CheckpointStore, fake_files: FakeFileSystem
) -> None:
    """The kernel carries out the rename of a process that was killed in it, minutes later."""
    staging, _ = staged(fake_store, 0.0)
    target = fake_store.directory / step_name(30)
    plain, late = fake_files.unlink, []

    def unlink(path: Path) -> None:
        plain(path)
        try:
            fake_files.rename_noreplace(staging.path, target)
        except OSError as error:
            late.append(error.errno)

    fake_files.unlink = unlink  # type: ignore[method-assign]

    fake_store.clean_staging(8)

    assert set(late) == {errno.ENOENT}
    assert fake_store.names() == ()


def test_removal_that_was_cut_short_is_completed(
    fake_store: CheckpointStore, fake_files: FakeFileSystem
) -> None:
    staging, _ = staged(fake_store, 0.0)
    hide(fake_store.disk, staging.path, NAME.removed_name)
    staged(fake_store, 0.0)  # the attempt's name is free again

    staging.abandon()

    assert fake_store.names() == ()
    reasons: list[str] = []
    staged(fake_store, 0.0)
    hide(fake_store.disk, staging.path, NAME.removed_name)
    remove_hidden(fake_store, reasons)
    assert (fake_store.names(), reasons) == ((), [])


def test_name_that_stays_taken_is_cleared_once(
    fake_store: CheckpointStore, fake_files: FakeFileSystem
) -> None:
    """A file server may show a name again and again that it has removed."""
    staging, _ = staged(fake_store, 0.0)
    tried = []

    def rename(source: Path, target: Path) -> None:
        tried.append((source, target))
        raise OSError(errno.EEXIST, "it is taken")

    fake_files.rename_noreplace = rename  # type: ignore[method-assign]

    with pytest.raises(StorageFailed):
        hide(fake_store.disk, staging.path, NAME.removed_name)

    assert len(tried) == 2


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


class SecondThread(FileSystem):
    """Another thread makes the directory while the first one syncs the name of its parent."""

    then: threading.Thread | None = None

    def fsync_directory(self, path: Path) -> None:
        if self.then is not None:
            second, self.then = self.then, None
            second.start()
        super().fsync_directory(path)


def test_directory_that_two_threads_make_was_not_removed(tmp_path: Path) -> None:
    files = SecondThread(tmp_path / "run")
    store = CheckpointStore(tmp_path / "run", files)
    second = files.then = threading.Thread(target=store.make_directory)

    store.make_directory()
    second.join(60)

    assert not second.is_alive()
    assert not store.take_removal()
