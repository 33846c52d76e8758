"""A disk that is full: leftovers and old steps go, and the save is tried once more."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from committing_report import Told
from host_saves import Workers

from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.verification import verify_step
from holdfast.runtime.committing.committer import Committer

BOUND_S = 60.0


class FullDisk:
    """A disk that takes nothing as long as it holds more than ``most`` steps."""

    def __init__(self, run_dir: Path, most: int, patch: pytest.MonkeyPatch) -> None:
        self._store = run_dir / "checkpoints"
        self._most = most
        plain = LocalFileSystem.allocate

        def allocate(files: LocalFileSystem, handle: int, size_bytes: int) -> None:
            if len(list(self._store.glob("step-*"))) > self._most:
                raise OSError(errno.ENOSPC, "No space left on device")
            plain(files, handle, size_bytes)

        patch.setattr(LocalFileSystem, "allocate", allocate)


def filled(workers: Workers, steps: int, told: Told) -> Committer:
    """Commit so many steps, none of which has to go by the rule of retention."""
    committer = Committer(workers.plan, told)
    for number in range(1, steps + 1):
        committer.commit(workers.held(number))
    return committer


def test_oldest_steps_make_room_for_a_new_one(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    committer = filled(workers, 5, told)
    FullDisk(tmp_path, most=4, patch=monkeypatch)

    committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[0] == 6
    assert set(store.steps()) == {2, 3, 4, 5, 6}, "no more than needed goes"
    assert all(verify_step(store, step).is_valid for step in store.steps())
    assert any("the disk is full" in str(record["reason"]) for record in told.of("prune_failed"))


def test_disk_that_has_no_room_for_a_third_step_fails_the_save(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = filled(workers, 5, Told())
    FullDisk(tmp_path, most=1, patch=monkeypatch)

    with pytest.raises(StorageFailed, match="No space left"):
        committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[:2] == (5, 4)
    assert all(verify_step(store, step).is_valid for step in (5, 4))
    assert [name for name in store.names() if name.startswith(".tmp")] == []
