"""A run directory that is removed while a job trains holds a run again afterwards."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.run.run_restorer import RunKeeper

RECORD = RunRecord("4f0c2d", FORMAT, 1.5, microbatches=4, seed=0, threads=1)


class Run:
    """A run directory whose owner looks after it."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.directory.prepare()
        self.lease: Lease = self.directory.acquire_lease()
        self.directory.create_record(RECORD)
        self.told: list[str] = []
        self.keeper = RunKeeper(self.directory, RECORD, self.lease, self.told.append)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "disk" / "run")
    yield run
    run.lease.release()


def test_whole_directory_is_left_alone(run: Run) -> None:
    run.keeper.look()

    assert run.told == []


def test_removed_directory_is_made_again_with_record_and_lease(run: Run) -> None:
    shutil.rmtree(run.directory.path)

    run.keeper.look()
    run.keeper.look()

    (text,) = run.told
    assert "was removed or moved, and is made again" in text
    assert run.directory.load_record() == RECORD
    with pytest.raises(RunDirectoryBusy):
        run.directory.acquire_lease()


def test_removed_record_is_written_again_under_the_same_lease(run: Run) -> None:
    run.directory.record_path.unlink()

    run.keeper.look()

    assert run.directory.load_record() == RECORD
    assert len(run.told) == 1


def test_directory_that_another_run_has_taken_is_told_once(run: Run) -> None:
    shutil.rmtree(run.directory.path)
    run.directory.prepare()
    run.directory.create_record(replace(RECORD, run_id="other"))

    run.keeper.look()
    run.keeper.look()

    (text,) = run.told
    assert text.startswith("this job saves no more: ")
    assert "belongs to run other now, not to 4f0c2d; stop one of the two jobs" in text
    found = run.directory.load_record()
    assert found is not None
    assert found.run_id == "other"


def test_directory_that_another_job_has_taken_is_not_touched(run: Run) -> None:
    shutil.rmtree(run.directory.path)
    run.directory.prepare()
    other = run.directory.acquire_lease()

    run.keeper.look()
    run.keeper.look()
    other.release()

    (text,) = run.told
    assert "belongs to another job" in text
    assert run.directory.load_record() is None


def test_nothing_is_made_where_a_file_system_was(run: Run) -> None:
    shutil.rmtree(run.directory.path.parent)

    run.keeper.look()

    (text,) = run.told
    assert "and its parent directory were removed" in text
    assert not run.directory.path.parent.exists()


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES])
@pytest.mark.parametrize("is_removed", [False, True], ids=["whole", "removed"])
def test_file_system_that_fails_is_told_of_once_and_ends_nothing(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    is_removed: bool,  # noqa: FBT001
) -> None:
    if is_removed:
        shutil.rmtree(run.directory.path)

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as failing:
        failing.setattr(Path, "stat", fail)
        run.keeper.look()
        run.keeper.look()

    (text,) = run.told
    assert os.strerror(number) in text
    run.keeper.look()
    assert run.directory.load_record() == RECORD
