"""A run directory that is removed while a job trains holds a run again afterwards."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.run.journal import Journal
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
    run.keeper.poll()

    assert run.told == []


def test_removed_directory_is_made_again_with_record_and_lease(run: Run) -> None:
    shutil.rmtree(run.directory.path)

    run.keeper.poll()
    run.keeper.poll()

    (text,) = run.told
    assert "was removed or moved, and is made again" in text
    assert run.directory.load_record() == RECORD
    with pytest.raises(RunDirectoryBusy):
        run.directory.acquire_lease()


def test_removed_record_is_written_again_under_the_same_lease(run: Run) -> None:
    run.directory.record_path.unlink()

    assert not run.keeper.poll()

    assert run.directory.load_record() == RECORD
    assert run.told == [
        f"RUN.json was removed from {run.directory.path}, and is made again: training goes on"
    ]


@dataclass
class Journalled:
    """A run whose journal is written, too."""

    run: Run
    journal: Journal

    def lose(self, *names: str) -> list[bool]:
        """Remove these files; return what three looks say, with an event before the second one."""
        for name in names:
            (self.run.directory.path / name).unlink()
        looks = [self.run.keeper.poll()]
        self.journal.record("step", step=2)
        return [*looks, self.run.keeper.poll(), self.run.keeper.poll()]


@pytest.fixture(params=["begun", "resumed"])
def journalled(run: Run, request: pytest.FixtureRequest) -> Iterator[Journalled]:
    """Return a job that has seen its journal empty, or with the lines of another job."""
    journal = Journal(run.directory.journal_path, run_id=RECORD.run_id, source="test")
    if request.param == "resumed":
        journal.record("job_started", workers=1)
        run.keeper = RunKeeper(run.directory, RECORD, run.lease, run.told.append)
    else:
        run.keeper = RunKeeper(run.directory, RECORD, run.lease, run.told.append)
        journal.record("job_started", workers=1)
    yield Journalled(run, journal)
    journal.close()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], None),
        (["lease"], None),
        (["RUN.json"], "RUN.json was removed from {}, and is made again"),
        (["RUN.json", "lease"], "RUN.json was removed from {}, and is made again"),
        (
            ["journal.jsonl"],
            "journal.jsonl was removed from {}, and is begun again without what it held",
        ),
        (
            ["RUN.json", "journal.jsonl"],
            "RUN.json and journal.jsonl were removed from {}, and are made again without what the "
            "journal held",
        ),
        (
            ["RUN.json", "journal.jsonl", "lease"],
            "{} was removed or moved, and is made again without the journal and the checkpoints "
            "that were in it",
        ),
    ],
)
def test_what_was_removed_is_told_and_a_new_journal_once(
    journalled: Journalled, names: list[str], words: str | None
) -> None:
    run = journalled.run

    looks = journalled.lose(*names)

    assert looks == ["journal.jsonl" in names, False, False]
    told = [] if words is None else [f"{words.format(run.directory.path)}: training goes on"]
    assert run.told == told
    assert run.directory.load_record() == RECORD


def test_journal_that_a_worker_has_begun_again_is_seen(journalled: Journalled) -> None:
    run = journalled.run
    shutil.rmtree(run.directory.path)
    journalled.journal.record("step", step=2)

    assert [run.keeper.poll(), run.keeper.poll()] == [True, False]
    assert run.told[0].startswith(f"{run.directory.path} was removed or moved")


def test_journal_that_goes_while_the_rest_is_made_again_is_missed_at_the_next_look(
    journalled: Journalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal of the directory takes its time, and the journal's turn comes whenever it does."""
    run = journalled.run
    run.directory.record_path.unlink()
    create = RunDirectory.create_record

    def create_and_lose(directory: RunDirectory, record: RunRecord) -> None:
        create(directory, record)
        directory.journal_path.unlink()

    monkeypatch.setattr(RunDirectory, "create_record", create_and_lose)

    assert journalled.lose() == [False, True, False]
    assert "journal.jsonl was removed" in run.told[-1]


def test_journal_that_cannot_be_read_is_taken_for_the_one_that_was_there(
    journalled: Journalled,
) -> None:
    run = journalled.run
    run.keeper.poll()
    run.directory.journal_path.unlink()
    run.directory.journal_path.symlink_to("/dev/null")

    assert not run.keeper.poll()
    assert run.told == []


def test_directory_that_another_run_has_taken_is_told_once(run: Run) -> None:
    shutil.rmtree(run.directory.path)
    run.directory.prepare()
    run.directory.create_record(replace(RECORD, run_id="other"))

    run.keeper.poll()
    run.keeper.poll()

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

    run.keeper.poll()
    run.keeper.poll()
    other.release()

    (text,) = run.told
    assert "belongs to another job" in text
    assert run.directory.load_record() is None


def test_nothing_is_made_where_a_file_system_was(run: Run) -> None:
    shutil.rmtree(run.directory.path.parent)

    run.keeper.poll()

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
        run.keeper.poll()
        run.keeper.poll()

    (text,) = run.told
    assert os.strerror(number) in text
    run.keeper.poll()
    assert run.directory.load_record() == RECORD
