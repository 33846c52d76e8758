"""A job that ends waits for no step that is being read back."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest
from committing_report import Told
from host_saves import LAUNCH, Workers, plan_of

from holdfast.checkpoint.filesystem import LocalFileSystem, PacedFileSystem
from holdfast.checkpoint.names import StagingName, removed_name
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving import checkpoint_care
from holdfast.runtime.saving.committer import Committer

BOUND_S = 60.0


def test_step_that_is_being_read_back_is_read_no_further_and_nothing_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At this rate a step would take minutes."""
    slow = functools.partial(PacedFileSystem, bytes_per_s=100.0)
    monkeypatch.setattr(checkpoint_care, "PacedFileSystem", slow)
    workers = Workers(plan_of(tmp_path, retention=Retention(2)))
    before = set(threading.enumerate())
    committer = Committer(workers.plan, Told())
    for step in (1, 2, 3, 4):
        committer.commit(workers.held(step))

    committer.close(0.0)

    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND_S)
        assert not thread.is_alive()
    assert CheckpointStore(tmp_path).steps() == (4, 3, 2, 1)
    workers.close()


def test_care_that_was_given_up_takes_nothing_that_is_staged_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mend may be staged, under the generation of its step."""
    removed = tmp_path / "checkpoints" / removed_name(3)
    removed.mkdir(parents=True)
    (removed / "shard").write_bytes(b"x")
    is_removing, go = threading.Event(), threading.Event()
    plain = LocalFileSystem.unlink

    def unlink(files: LocalFileSystem, path: Path) -> None:
        is_removing.set()
        go.wait(BOUND_S)
        plain(files, path)

    monkeypatch.setattr(LocalFileSystem, "unlink", unlink)
    workers = Workers(plan_of(tmp_path))
    before = set(threading.enumerate())
    committer = Committer(workers.plan, Told())
    assert is_removing.wait(BOUND_S)

    committer.close(0.0)
    staged = tmp_path / "checkpoints" / str(StagingName(20, LAUNCH - 1, 1))
    staged.mkdir()
    go.set()

    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND_S)
    assert removed.exists(), "the next care completes the removal"
    assert staged.exists()
    workers.close()
