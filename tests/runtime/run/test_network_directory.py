"""A run directory on a server: calls that fail or lack, lost answers, names that are late."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.runtime.errors import ExitCode, RunDirectoryBusy, RunUnreadable, UsageError
from holdfast.runtime.head.batch_job import ChainFile
from holdfast.runtime.run import files
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.files import refusal
from holdfast.runtime.run.find_run import no_run
from holdfast.runtime.run.journal import Journal, next_generation
from holdfast.runtime.run.run_directory import FORMAT, Ownership, RunDirectory, RunRecord

NO_SYNC = [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP]
LOST = [errno.ENOENT, errno.EEXIST, errno.EIO, errno.ESTALE]
RECORD = RunRecord("4f0c2d", FORMAT, 1.5, microbatches=4, seed=0, threads=1)
NUMBERS = sorted(TRANSIENT)


@pytest.fixture
def empty(tmp_path: Path) -> RunDirectory:
    empty = RunDirectory(tmp_path / "run")
    empty.prepare()
    return empty


def _fail(number: int, after: Callable[..., object] | None = None) -> Callable[..., Any]:
    """Return a call that fails, and does ``after`` all the same."""

    def fail(*arguments: Any, **named: Any) -> None:
        if after is not None:
            after(*arguments, **named)
        raise OSError(number, os.strerror(number))

    return fail


def test_record_is_created_once(empty: RunDirectory) -> None:
    empty.create_record(RECORD)
    with pytest.raises(UsageError, match="already holds a run"):
        empty.create_record(RECORD)

    assert empty.load_record() == RECORD
    assert os.listdir(empty.path) == ["RUN.json"]


@pytest.mark.parametrize("number", LOST)
def test_record_whose_creation_was_not_answered_is_there(
    empty: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again, and is told that there is no such draft."""
    monkeypatch.setattr(Path, "rename", _fail(number, after=Path.rename))

    empty.create_record(RECORD)

    assert empty.load_record() == RECORD


@pytest.mark.parametrize("number", LOST)
def test_run_is_set_aside_although_no_rename_is_answered(
    empty: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create_record(RECORD)
    empty.checkpoints_path.mkdir()
    monkeypatch.setattr(Path, "rename", _fail(number, after=Path.rename))

    folder = empty.set_aside()

    assert folder is not None
    assert sorted(os.listdir(folder)) == ["RUN.json", "checkpoints"]


@pytest.mark.parametrize("number", NO_SYNC)
def test_run_begins_where_directories_cannot_be_synced(
    empty: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first save tells of it."""
    monkeypatch.setattr(files, "sync", _fail(number))

    empty.create_record(RECORD)

    assert empty.load_record() == RECORD


def test_run_does_not_begin_where_syncing_a_directory_fails(
    empty: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync", _fail(errno.EIO))

    with pytest.raises(RunUnreadable, match="nothing is known to be damaged"):
        empty.create_record(RECORD)


def test_record_that_is_listed_and_not_found_ends_the_job_and_not_the_run(
    empty: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host has begun the run, and this one remembers that there was none."""
    empty.create_record(RECORD)
    monkeypatch.setattr(os, "open", _fail(errno.ENOENT))

    with pytest.raises(RunUnreadable, match="listed, and yet not found") as refusal:
        empty.load_record()

    assert refusal.value.exit_code == ExitCode.STOPPED_EARLY


def errno_name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    found.prepare()
    found.create_record(RECORD)
    Journal(found.journal_path, run_id=RECORD.run_id, source="test").close()
    return found


STARTS: dict[str, Callable[[RunDirectory], object]] = {
    "prepare": lambda run: run.prepare(),
    "lease": lambda run: run.acquire_lease(),
    "record": lambda run: run.load_record(),
    "new record": lambda run: RunDirectory(run.path.parent).create_record(RECORD),
    "fresh": lambda run: run.set_aside(),
    "checkpoints": lambda run: run.has_checkpoints,
    "generation": next_generation,
    "chain": lambda run: ChainFile(run, "c1").newest_step(),
    "no run": lambda run: no_run(run.path),
}


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
@pytest.mark.parametrize("start", STARTS)
def test_start_that_the_file_system_fails_can_be_tried_again(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, start: str, number: int
) -> None:
    with monkeypatch.context() as broken:
        for name in ("open", "listdir", "rename"):
            broken.setattr(os, name, _fail(number))
        broken.setattr(Path, "lstat", _fail(number))
        with pytest.raises(RunUnreadable) as refused:
            STARTS[start](directory)

    assert refused.value.exit_code == ExitCode.STOPPED_EARLY == os.EX_TEMPFAIL
    assert f"({errno_name(number)})" in str(refused.value)
    assert "nothing is known to be damaged" in str(refused.value)
    assert "--run-dir" not in str(refused.value)
    assert directory.load_record() == RECORD


def test_permission_stays_a_matter_of_usage(directory: RunDirectory) -> None:
    error = PermissionError(errno.EACCES, "Permission denied")

    found = refusal(directory.path, error, "make it writable")

    assert type(found) is UsageError
    assert (str(found), found.exit_code) == ("make it writable", ExitCode.USAGE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno_name)
def test_full_file_system_lets_the_job_run_again(directory: RunDirectory, number: int) -> None:
    found = refusal(directory.path, OSError(number, os.strerror(number)), "make it writable")

    assert found.exit_code == ExitCode.STOPPED_EARLY
    assert str(found) == (
        f"{directory.path} cannot be written: {os.strerror(number)} ({errno_name(number)}); "
        "nothing was begun: free space there, then run again"
    )


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
def test_owner_of_a_busy_directory_may_be_unreadable(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lease = directory.acquire_lease()
    monkeypatch.setattr(os, "pread", _fail(number))

    with pytest.raises(RunDirectoryBusy, match="its owner is just starting"):
        directory.acquire_lease()
    lease.release()


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
@pytest.mark.parametrize("call", ["open", "fstat", "write", "pread", "mkdir"])
def test_journal_loses_lines_and_raises_nothing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = directory.journal_path
    journal = Journal(path, run_id=RECORD.run_id, source="client")
    with monkeypatch.context() as broken:
        broken.setattr(os, call, _fail(number))
        journal.record("step", step=1)
    journal.record("step", step=2)
    journal.close()

    assert b'"step": 2' in path.read_bytes()


@pytest.mark.parametrize("number", NUMBERS, ids=errno_name)
def test_history_and_owner_are_unknown_while_the_files_fail(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(files, "_open_name", _fail(number))

    assert HistoryReader(directory.journal_path).read().failures == 0
    Ownership(directory.path, "ours").refuse_taken()
    assert directory.agent_socket() is None
