"""What is removed has lost its name before its first file goes."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import StagingName, step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import (
    CheckpointStore,
    Staging,
    hide,
    remove_hidden,
    remove_staging,
    save,
)
from holdfast.checkpoint.tensor import ShardLayout, specs_of

STATE = {"weights": np.arange(3000.0)}
HEADER = Header("run", 2, 30)
NAME = StagingName(30, 2, 1)


@pytest.fixture
def files() -> FakeFileSystem:
    return FakeFileSystem()


@pytest.fixture
def store(files: FakeFileSystem) -> CheckpointStore:
    return CheckpointStore(Path("/run/job"), files)


def staged(store: CheckpointStore) -> tuple[Staging, Manifest]:
    """Return a save that lacks its commit alone."""
    layout = ShardLayout(specs_of(STATE), 1)
    staging = store.stage(30, 2, 1)
    record = staging.write_shard(STATE, layout, 0, HEADER)
    return staging, Manifest.assemble(layout, [record], header=HEADER, cursor={}, numerics={})


LOOKS = ("list", "identity")


@pytest.mark.parametrize("remover", ["the next generation", "its own"])
def test_staging_has_lost_its_name_before_its_first_file_goes(
    store: CheckpointStore, files: FakeFileSystem, remover: str
) -> None:
    staging, _ = staged(store)
    before = len(files.calls)

    if remover == "its own":
        staging.abandon()
    else:
        assert store.clean_staging(3) == ()

    changes = [call for call in files.calls[before:] if call.split()[0] not in LOOKS]
    assert changes[0] == f"rename_noreplace {store.directory / NAME.removed_name}"
    assert store.names() == ()


def test_late_rename_of_a_killed_process_makes_no_hollow_step(
    store: CheckpointStore, files: FakeFileSystem
) -> None:
    """The kernel carries out the rename of a process that was killed in it, minutes later."""
    staging, _ = staged(store)
    target = store.directory / step_name(30)
    plain, late = files.unlink, []

    def unlink(path: Path) -> None:
        plain(path)
        try:
            files.rename_noreplace(staging.path, target)
        except OSError as error:
            late.append(error.errno)

    files.unlink = unlink  # type: ignore[method-assign]

    store.clean_staging(3)

    assert late == [errno.ENOENT]
    assert store.names() == ()


def test_late_rename_that_came_first_has_made_a_whole_step(store: CheckpointStore) -> None:
    staging, manifest = staged(store)
    staging.commit(manifest)

    remove_staging(store.disk, staging.path, NAME.removed_name)

    assert store.steps() == (30,)
    store.scan(30).verify()


def test_removal_that_was_cut_short_is_completed(
    store: CheckpointStore, files: FakeFileSystem
) -> None:
    staging, _ = staged(store)
    hide(store.disk, staging.path, NAME.removed_name)
    staged(store)  # the attempt's name is free again

    staging.abandon()

    assert store.names() == ()
    reasons: list[str] = []
    staged(store)
    hide(store.disk, staging.path, NAME.removed_name)
    remove_hidden(store, reasons)
    assert (store.names(), reasons) == ((), [])


def test_store_without_a_directory_has_nothing_hidden(store: CheckpointStore) -> None:
    reasons: list[str] = []

    remove_hidden(store, reasons)

    assert reasons == []


def test_hiding_a_step_syncs_before_its_files_go(
    store: CheckpointStore, files: FakeFileSystem
) -> None:
    """A power cut in between must not bring back a step of which files are gone."""
    save(store, STATE, header=HEADER)
    hide(store.disk, store.directory / step_name(30), ".del-000000000030")
    before = len(files.calls)

    remove_hidden(store, [])

    operations = [call.split()[0] for call in files.calls[before:]]
    assert operations.index("fsync_directory") < operations.index("unlink")
