"""A run as commands find it on the disk, and what they say when it is not there."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.run.stored_run import StoredRun


def saved(path: Path, *steps: int) -> StoredRun:
    """Return a run with these steps, and no record."""
    path.mkdir(exist_ok=True)
    for step in steps:
        save(CheckpointStore(path), {"a": np.arange(9)}, header=Header("run", 1, step), writers=1)
    return StoredRun.open(path)


def test_newest_step_is_what_is_wanted_by_default(tmp_path: Path) -> None:
    run = saved(tmp_path, 5, 20, 10)

    assert run.steps() == (20, 10, 5)
    assert run.step(None) == 20
    assert run.step(10) == 10


def test_copy_without_a_record_has_no_id(tmp_path: Path) -> None:
    assert saved(tmp_path, 5).run_id is None


def test_step_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    run = saved(tmp_path, 5, 10)

    with pytest.raises(UsageError) as caught:
        run.step(7)

    assert str(caught.value) == f"{tmp_path} has no step 7; it has 10, 5"


def test_of_many_steps_the_newest_ten_are_named(tmp_path: Path) -> None:
    run = saved(tmp_path, *range(1, 13))

    with pytest.raises(UsageError, match="it has 12, 11, 10, 9, 8, 7, 6, 5, 4, 3 and older ones"):
        run.step(99)


def test_directory_without_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()

    with pytest.raises(UsageError, match="holds no checkpoint: its run has saved none yet"):
        saved(tmp_path).step(None)


def test_step_that_the_journal_knows_of_was_removed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    record = RunRecord("0a1b", FORMAT, 1.5, microbatches=4, seed=0, threads=1)
    directory.create_record(record)
    journal = Journal(directory.journal_path, run_id="0a1b", source="snapshot writer")
    for step in (10, 20):
        journal.record(Checkpoint(step, 0.5, 9, 1))
    journal.close()

    with pytest.raises(UsageError) as caught:
        saved(tmp_path).steps()

    assert str(caught.value) == (
        f"{tmp_path} holds no checkpoint: its journal knows of step 20, which was removed"
    )


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_what_is_no_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.touch()

    with pytest.raises(UsageError, match=f"{path} (does not exist|is no run: it is a file)"):
        StoredRun.open(path)


def test_checkpoints_that_cannot_be_listed_are_told_by_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved(tmp_path, 5)

    def fail(store: CheckpointStore) -> tuple[int, ...]:
        raise StorageFailed("list", store.directory, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(CheckpointStore, "steps", fail)

    with pytest.raises(UsageError, match="Input/output error"):
        run.steps()
