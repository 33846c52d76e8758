"""No call on the files of a run directory ends a job for an error that may be gone at the next."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.runtime.batch.incarnations import ChainFile
from holdfast.runtime.errors import (
    ExitCode,
    RunDirectoryBusy,
    RunUnreadable,
    UsageError,
)
from holdfast.runtime.run import files
from holdfast.runtime.run.files import refusal
from holdfast.runtime.run.find_run import find_key, no_run
from holdfast.runtime.run.journal import HistoryReader, Journal, next_generation
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

RECORD = RunRecord("4f0c2d", FORMAT, 1.5, microbatches=4, seed=0, threads=1)
NUMBERS = sorted(TRANSIENT)


def _name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    found.prepare()
    found.create_record(RECORD)
    Journal(found.journal_path, run_id=RECORD.run_id, source="test").close()
    return found


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


STARTS: dict[str, Callable[[RunDirectory], object]] = {
    "prepare": lambda run: run.prepare(),
    "lease": lambda run: run.acquire_lease(),
    "join": lambda run: run.join_lease(),
    "record": lambda run: run.load_record(),
    "new record": lambda run: RunDirectory(run.path.parent).create_record(RECORD),
    "fresh": lambda run: run.set_aside(),
    "checkpoints": lambda run: run.has_checkpoints,
    "generation": next_generation,
    "chain": lambda run: ChainFile(run, "c1").newest_step(),
    "no run": lambda run: no_run(run.path),
    "key": lambda run: find_key(run.path.parent / "key", run.path),
}


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("start", STARTS)
def test_start_that_the_file_system_fails_can_be_tried_again(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, start: str, number: int
) -> None:
    with monkeypatch.context() as broken:
        for name in ("open", "listdir", "rename", "link"):
            broken.setattr(os, name, failing(number))
        broken.setattr(Path, "lstat", failing(number))
        with pytest.raises(RunUnreadable) as refused:
            STARTS[start](directory)

    assert refused.value.exit_code == ExitCode.STOPPED_EARLY == os.EX_TEMPFAIL
    assert f"({_name(number)})" in str(refused.value)
    assert "nothing is known to be damaged" in str(refused.value)
    assert "--run-dir" not in str(refused.value)
    assert directory.load_record() == RECORD


def test_permission_stays_a_matter_of_usage(directory: RunDirectory) -> None:
    error = PermissionError(errno.EACCES, "Permission denied")

    found = refusal(directory.path, error, "make it writable")

    assert type(found) is UsageError
    assert (str(found), found.exit_code) == ("make it writable", ExitCode.USAGE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=_name)
def test_full_file_system_lets_the_job_run_again(directory: RunDirectory, number: int) -> None:
    found = refusal(directory.path, OSError(number, os.strerror(number)), "make it writable")

    assert found.exit_code == ExitCode.STOPPED_EARLY
    assert str(found) == (
        f"{directory.path} cannot be written: {os.strerror(number)} ({_name(number)}); nothing "
        "was begun: free space there, then run again"
    )


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_owner_of_a_busy_directory_may_be_unreadable(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lease = directory.acquire_lease()
    monkeypatch.setattr(os, "pread", failing(number))

    with pytest.raises(RunDirectoryBusy, match="its owner is just starting"):
        directory.acquire_lease()
    lease.release()


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("call", ["open", "fstat", "write", "pread", "mkdir"])
def test_journal_of_a_worker_loses_lines_and_raises_nothing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = directory.journal_path
    journal = Journal(path, run_id=RECORD.run_id, source="worker 0", is_required=False)
    with monkeypatch.context() as broken:
        broken.setattr(os, call, failing(number))
        journal.record("step", step=1)
        late = Journal(path, run_id=RECORD.run_id, source="worker 1", is_required=False)
        late.record("step", step=1)
    journal.record("step", step=2)
    journal.close()
    late.close()

    assert b'"step": 2' in path.read_bytes()


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_history_and_intruder_are_unknown_while_the_files_fail(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(files, "_open_name", failing(number))

    assert HistoryReader(directory.journal_path).read().failures == 0
    assert directory.intruder("ours") is None
    assert directory.agent_socket() is None
