"""A step verified, or made whole by the files of a copy."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_filesystem import FakeFileSystem, PowerCut, Survival
from holders import RUN_ID, STEP, WRITERS, Copies, flip, manifest, shard, small_state
from whole_save import save

from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, StorageFailed
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import shard_name, step_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.repair import mend_step, verify_step
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore

FIRST_PIECE = 4096  # pieces of a page or more begin at a page


RUN_DIR = Path("/run/job")
LOST_SHARD = shard_name(1, WRITERS)
MANY = [(Survival.NAMES, 0), *((Survival.ANYTHING, seed) for seed in range(6))]
SURVIVALS = [
    (Survival.NOTHING, 0),
    *(pytest.param(*case, marks=pytest.mark.extended) for case in MANY),
]


@pytest.fixture
def here(tmp_path: Path) -> CheckpointStore:
    return Copies.make(tmp_path).here


def test_whole_step_is_valid_and_every_tensor_is_counted(here: CheckpointStore) -> None:
    counts: list[int] = []
    described = here.scan(STEP).manifest()

    verdict = verify_step(here, STEP, run_id=RUN_ID, progress=counts.append)

    assert verdict.is_valid
    assert verdict.nbytes == described.nbytes
    assert sum(counts) == sum(spec.nbytes for spec in described.specs)


@pytest.mark.parametrize(
    ("damage", "run_id", "reason"),
    [
        (lambda store: flip(shard(store, 1), 4096), RUN_ID, "in shard 1 have a wrong digest"),
        (lambda store: flip(manifest(store), 50), RUN_ID, "its sha256 does not match"),
        (lambda _: None, "other", "belongs to run"),
    ],
    ids=["a bit of a shard", "the manifest", "another run"],
)
def test_what_is_wrong_with_a_step_is_named(
    here: CheckpointStore, damage: Callable[[CheckpointStore], None], run_id: str, reason: str
) -> None:
    damage(here)

    verdict = verify_step(here, STEP, run_id=run_id)

    assert not verdict.is_valid
    assert reason in str(verdict.reason)


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies.make(tmp_path)


def repair(copies: Copies, run_id: str | None = RUN_ID):  # noqa: ANN201
    return mend_step(copies.here, copies.there, STEP, run_id=run_id)


def files_of(store: CheckpointStore, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store.directory / name).iterdir()}


def flip_in_a_piece(store: CheckpointStore) -> None:
    flip(shard(store, 1), FIRST_PIECE)


def flip_in_the_metadata(store: CheckpointStore) -> None:
    flip(shard(store, 1), 9)


def cut_short(store: CheckpointStore) -> None:
    os.truncate(shard(store, 2), 5000)


def make_longer(store: CheckpointStore) -> None:
    with shard(store, 2).open("ab") as file:
        file.write(b"more")


def remove_a_shard(store: CheckpointStore) -> None:
    shard(store, 0).unlink()


def flip_in_the_manifest(store: CheckpointStore) -> None:
    flip(manifest(store), 50)


def remove_the_manifest(store: CheckpointStore) -> None:
    manifest(store).unlink()


DAMAGES = [
    flip_in_a_piece,
    flip_in_the_metadata,
    cut_short,
    make_longer,
    remove_a_shard,
    flip_in_the_manifest,
    remove_the_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_step_has_the_same_bytes_again_and_is_kept_aside(
    damage: Callable[[CheckpointStore], None], copies: Copies
) -> None:
    pristine = files_of(copies.there, step_name(STEP))
    damage(copies.here)
    damaged = files_of(copies.here, step_name(STEP))

    found = repair(copies)

    assert found.fault
    assert set(found.files) == {name for name in pristine if pristine[name] != damaged.get(name)}
    assert files_of(copies.here, step_name(STEP)) == pristine
    assert found.bad_name is not None
    assert files_of(copies.here, found.bad_name) == damaged
    assert copies.here.names() == (found.bad_name, step_name(STEP))
    assert files_of(copies.there, step_name(STEP)) == pristine


def test_whole_step_is_left_alone(copies: Copies) -> None:
    before = copies.here.directory.stat().st_mtime_ns

    found = repair(copies)

    assert (found.fault, found.files, found.bad_name) == (None, (), None)
    assert copies.here.directory.stat().st_mtime_ns == before


def test_what_nobody_has_is_named_and_nothing_is_moved(copies: Copies) -> None:
    flip_in_a_piece(copies.here)
    flip_in_a_piece(copies.there)
    before = copies.here.names()

    with pytest.raises(CheckpointError) as caught:
        repair(copies)

    own, theirs = (store.directory / step_name(STEP) for store in (copies.here, copies.there))
    assert f"neither {own} nor {theirs} has shard-00001-of-00003.h5 whole; use another copy" in str(
        caught.value
    )
    assert copies.here.names() == before


def test_manifest_of_another_run_is_not_taken(copies: Copies) -> None:
    remove_the_manifest(copies.here)
    shutil.rmtree(copies.there.directory)
    save(copies.there, small_state(), header=Header("other", 2, STEP))

    with pytest.raises(CheckpointError, match="belongs to run other, not to 4f0c2d"):
        repair(copies)


def test_manifest_is_not_taken_without_knowing_the_run(copies: Copies) -> None:
    flip_in_the_manifest(copies.here)

    with pytest.raises(CheckpointError, match=r"no RUN.json tells"):
        repair(copies, run_id=None)


def test_two_damaged_manifests_are_both_named(copies: Copies) -> None:
    flip_in_the_manifest(copies.here)
    remove_the_manifest(copies.there)

    with pytest.raises(CheckpointError, match=r"damaged or cut short; .*there/checkpoints"):
        repair(copies)


@pytest.mark.parametrize(("older", "newer"), [("g9-a1", "g13-a1"), ("g2-a9", "g2-a10")])
def test_newest_of_what_was_moved_aside_counts_as_ours(
    copies: Copies, older: str, newer: str
) -> None:
    """Generations grow by the number of workers with each launch, and names sort as text."""
    directory = copies.here.directory
    (directory / f".bad-{STEP:012d}-{older}").mkdir()
    (directory / step_name(STEP)).rename(directory / f".bad-{STEP:012d}-{newer}")
    shutil.rmtree(copies.there.directory)

    found = repair(copies)

    assert found.files == ()
    assert restore(copies.here, STEP).manifest.run_id == RUN_ID


def test_files_of_all_that_was_moved_aside_make_a_whole_step(copies: Copies) -> None:
    """A mend that was cut short has left two directories, and neither of them is whole."""
    directory = copies.here.directory
    older, newer = (directory / f".bad-{STEP:012d}-{save}" for save in ("g9-a1", "g13-a1"))
    shutil.copytree(directory / step_name(STEP), older)
    (older / "shard-00000-of-00003.h5").unlink()
    (directory / step_name(STEP)).rename(newer)
    (newer / "shard-00002-of-00003.h5").unlink()
    (newer / "MANIFEST.json").unlink()
    shutil.rmtree(copies.there.directory)

    found = repair(copies)

    assert (found.files, found.bad_name) == ((), None)
    assert restore(copies.here, STEP).manifest.run_id == RUN_ID
    assert copies.here.names() == (newer.name, older.name, step_name(STEP))


@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_moved_aside_of_another_run_stops_no_mend(
    copies: Copies, *, is_there: bool
) -> None:
    directory = copies.here.directory
    own = directory / f".bad-{STEP:012d}-g2-a1"
    (directory / step_name(STEP)).rename(own)
    save(copies.here, small_state(1), header=Header("other", 2, STEP))
    (directory / step_name(STEP)).rename(directory / f".bad-{STEP:012d}-g9-a1")
    if is_there:
        shutil.copytree(own, directory / step_name(STEP))
        remove_the_manifest(copies.here)
    shutil.rmtree(copies.there.directory)

    assert repair(copies).files == ()

    assert restore(copies.here, STEP).manifest.run_id == RUN_ID


@pytest.mark.parametrize("is_moved_aside", [False, True])
def test_copy_has_a_later_save_of_the_step(copies: Copies, *, is_moved_aside: bool) -> None:
    """A damaged step is moved aside when it is saved again; a mirror has the second save."""
    cut_short(copies.here)
    if is_moved_aside:
        bad = f".bad-{STEP:012d}-g5-a1"
        (copies.here.directory / step_name(STEP)).rename(copies.here.directory / bad)
    shutil.rmtree(copies.there.directory)
    save(copies.there, small_state(), header=Header(RUN_ID, 5, STEP), writers=2)

    found = repair(copies)

    assert found.fault
    assert restore(copies.here, STEP).manifest.generation == 5
    assert files_of(copies.here, step_name(STEP)) == files_of(copies.there, step_name(STEP))


class BadBlock(FileSystem):
    """A disk on which the first page of data of one shard cannot be read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._inode = path.stat().st_ino

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        if os.fstat(handle).st_ino == self._inode and offset <= FIRST_PIECE < offset + len(buffer):
            raise OSError(errno.EIO, "bad block")
        return super().read(handle, buffer, offset)


def test_bad_block_costs_the_file_that_it_lies_in(copies: Copies, tmp_path: Path) -> None:
    here = CheckpointStore(tmp_path / "here", BadBlock(shard(copies.here, 1)))

    found = repair(Copies(here, copies.there))

    assert found.files == ("shard-00001-of-00003.h5",)
    assert restore(here, STEP).manifest.step == STEP


class FullDisk(FileSystem):
    """No byte more fits."""

    def allocate(self, handle: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class LastRename(FileSystem):
    """A disk that fails when a staged step is renamed to its name."""

    def rename_noreplace(self, source: Path, target: Path) -> None:
        if source.name.startswith(".tmp-") and target.name == step_name(STEP):
            raise OSError(errno.EIO, "rename fails")
        super().rename_noreplace(source, target)


@pytest.mark.parametrize("filesystem", [FullDisk(), LastRename()])
def test_failed_repair_leaves_the_damaged_step_where_it_was(
    filesystem: FileSystem, copies: Copies, tmp_path: Path
) -> None:
    cut_short(copies.here)
    damaged = files_of(copies.here, step_name(STEP))

    with pytest.raises(StorageFailed):
        repair(Copies(CheckpointStore(tmp_path / "here", filesystem), copies.there))

    assert copies.here.names() == (step_name(STEP),)
    assert files_of(copies.here, step_name(STEP)) == damaged


class Forgetful(FileSystem):
    """A disk that spoils a shard when the step gets its name, after all of it was synced."""

    def rename_noreplace(self, source: Path, target: Path) -> None:
        super().rename_noreplace(source, target)
        if source.name.startswith(".tmp-") and target.name == step_name(STEP):
            flip(target / "shard-00001-of-00003.h5", FIRST_PIECE)


@pytest.mark.parametrize("is_there", [True, False])
def test_mended_step_that_does_not_verify_leaves_its_place_again(
    copies: Copies, tmp_path: Path, *, is_there: bool
) -> None:
    cut_short(copies.here)
    damaged = files_of(copies.here, step_name(STEP))
    where = step_name(STEP) if is_there else f".bad-{STEP:012d}-g9-a1"
    (copies.here.directory / step_name(STEP)).rename(copies.here.directory / where)

    with pytest.raises(CheckpointInvalid, match="wrong digest"):
        repair(Copies(CheckpointStore(tmp_path / "here", Forgetful()), copies.there))

    assert files_of(copies.here, where) == damaged
    assert copies.here.steps() == ((STEP,) if is_there else ())
    assert Pruner(copies.here, Retention()).prune() == ()
    assert copies.here.names() == (where,)


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
    """Return the copy, which is only read."""
    return saved()


def repair_cut(filesystem: FakeFileSystem) -> None:
    here, copy = (CheckpointStore(RUN_DIR, files) for files in (filesystem, mirror()))
    mend_step(here, copy, STEP, run_id=RUN_ID)


def calls_of_a_repair() -> range:
    filesystem = damaged()
    first = len(filesystem.calls)
    repair_cut(filesystem)
    return range(first, len(filesystem.calls))


@pytest.mark.parametrize(("survival", "seed"), SURVIVALS)
def test_nothing_is_lost_and_repairing_again_succeeds(survival: Survival, seed: int) -> None:
    for call in calls_of_a_repair():
        filesystem = damaged()
        filesystem.cut_power_at(call)
        with pytest.raises(PowerCut):
            repair_cut(filesystem)

        after = filesystem.after_power_cut(survival, seed + call)

        store = CheckpointStore(RUN_DIR, after)
        names = [name for name in store.names() if not name.startswith(".tmp-")]
        holders = [name for name in names if LOST_SHARD not in after.list(store.directory / name)]
        where = filesystem.calls[-1]
        assert len(holders) == 1, f"call {call}: the damaged step is gone after {where}"
        for name in set(names) - set(holders):
            assert name == step_name(STEP)
            restore(store, STEP)
        repair_cut(after)
        assert restore(store, STEP).manifest.run_id == RUN_ID
