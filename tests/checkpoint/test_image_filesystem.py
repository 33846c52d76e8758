"""Snapshots in memory, read and mended from like a directory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from holders import RUN_ID, STEP, WRITERS, Copies, flip, manifest, shard, small_state

from holdfast.checkpoint.errors import MendImpossible
from holdfast.checkpoint.image import ShardImage
from holdfast.checkpoint.image_map import ImageFileSystem
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, mend_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, specs_of

HEADER = Header(RUN_ID, 2, STEP)


def images_of(wanted: Collection[int] = range(WRITERS)) -> tuple[Manifest, dict[int, memoryview]]:
    """Return the manifest of the small state, and some of its shards in memory."""
    state = small_state()
    layout = ShardLayout(specs_of(state), WRITERS)
    records, images = [], {}
    for index in range(WRITERS):
        image = ShardImage(layout, index, RUN_ID)
        images[index] = memoryview(bytearray(image.size))
        records.append(image.fill(images[index], state, HEADER))
    found = Manifest.assemble(layout, records, header=HEADER, cursor={}, numerics={})
    return found, {index: images[index] for index in wanted}


def in_memory(directory: Path, wanted: Collection[int] = range(WRITERS)) -> CheckpointStore:
    return CheckpointStore(
        directory, ImageFileSystem(directory / "checkpoints", *images_of(wanted))
    )


def test_state_is_restored_from_memory(tmp_path: Path) -> None:
    store = in_memory(tmp_path)

    restored = restore(store, STEP)

    assert store.steps() == (STEP,)
    for name, tensor in small_state().items():
        assert restored.state[name].tobytes() == tensor.tobytes()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("index", range(WRITERS))
def test_damaged_shard_is_mended_from_its_snapshot_alone(tmp_path: Path, index: int) -> None:
    here = Copies.make(tmp_path).here
    flip(shard(here, index), -5)

    result = mend_step(Holders(here, in_memory(tmp_path / "here", {index})), STEP, run_id=RUN_ID)

    assert (result.taken, len(result.faults)) == (1, 1)
    assert restore(here, STEP).state.keys() == small_state().keys()


def test_step_that_the_disk_has_lost_is_written_from_memory(tmp_path: Path) -> None:
    here = Copies.make(tmp_path).here
    manifest(here).unlink()
    shard(here, 0).unlink()

    result = mend_step(Holders(here, in_memory(tmp_path / "here")), STEP, run_id=RUN_ID)

    assert result.bad_name is not None
    assert restore(here, STEP).manifest.writers == WRITERS


def test_bit_that_flipped_in_memory_too_gets_nowhere(tmp_path: Path) -> None:
    here = Copies.make(tmp_path).here
    flip(shard(here, 1), -5)
    found, images = images_of()
    images[1][-5] ^= 1
    there = CheckpointStore(tmp_path, ImageFileSystem(tmp_path / "checkpoints", found, images))

    with pytest.raises(MendImpossible, match="neither holder has"):
        mend_step(Holders(here, there), STEP, run_id=RUN_ID)


_CHANGES: dict[str, Callable[[ImageFileSystem, Path], Any]] = {
    "mkdir": lambda files, path: files.mkdir(path),
    "create": lambda files, path: files.create_exclusive(path),
    "allocate": lambda files, path: files.allocate(0, 1),
    "write": lambda files, path: files.write(0, [memoryview(b"x")], 0),
    "write back": lambda files, path: files.start_writeback(0, 0, 1),
    "fsync": lambda files, path: files.fsync(0),
    "fsync directory": lambda files, path: files.fsync_directory(path),
    "rename": lambda files, path: files.rename_noreplace(path, path),
    "unlink": lambda files, path: files.unlink(path),
    "rmdir": lambda files, path: files.rmdir(path),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_nothing_can_be_changed(tmp_path: Path, change: str) -> None:
    with pytest.raises(OSError, match="only read") as caught:
        _CHANGES[change](ImageFileSystem(tmp_path, *images_of()), tmp_path)
    assert caught.value.errno == errno.EROFS


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    files = ImageFileSystem(tmp_path, *images_of({0}))

    with pytest.raises(FileNotFoundError):
        files.open_read(tmp_path / "step-000000000041" / "MANIFEST.json")
    with pytest.raises(FileNotFoundError):
        files.list(tmp_path / "elsewhere")
    assert files.list(tmp_path / "step-000000000040") == (
        "MANIFEST.json",
        "shard-00000-of-00003.h5",
    )
