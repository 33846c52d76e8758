"""A run directory on a server: calls that it lacks, answers that are lost, names that are late."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import ExitCode, RunUnreadable, UsageError
from holdfast.runtime.run import files
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord

RECORD = RunRecord(
    run_id="0123456789abcdef", format=1, created=1.5, microbatches=4, seed=0, threads=2
)
NO_LINKS = [errno.EPERM, errno.ENOSYS, errno.ENOTSUP]
NO_SYNC = [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP]
LOST = [errno.ENOENT, errno.EEXIST, errno.EIO, errno.ESTALE]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.prepare()
    return directory


def _fail(number: int, after: Callable[..., object] | None = None) -> Callable[..., Any]:
    """Return a call that fails, and does ``after`` all the same."""

    def fail(*arguments: Any, **named: Any) -> None:
        if after is not None:
            after(*arguments, **named)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", NO_LINKS)
@pytest.mark.parametrize("has_renameat2", [True, False])
def test_record_is_created_once_without_hard_links(
    directory: RunDirectory, number: int, *, has_renameat2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _fail(number))
    if not has_renameat2:
        monkeypatch.setattr(files, "renameat2", lambda _source, _target: False)

    directory.create_record(RECORD)
    with pytest.raises(UsageError, match="already holds a run"):
        directory.create_record(RECORD)

    assert directory.load_record() == RECORD
    assert os.listdir(directory.path) == ["RUN.json"]


@pytest.mark.parametrize("number", LOST)
def test_record_whose_creation_was_not_answered_is_there(
    directory: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks again, and is told that there is such a name."""
    monkeypatch.setattr(os, "link", _fail(number, after=os.link))

    directory.create_record(RECORD)

    assert directory.load_record() == RECORD


@pytest.mark.parametrize("number", LOST)
def test_run_is_set_aside_although_no_rename_is_answered(
    directory: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create_record(RECORD)
    directory.checkpoints_path.mkdir()
    monkeypatch.setattr(Path, "rename", _fail(number, after=Path.rename))

    folder = directory.set_aside()

    assert folder is not None
    assert sorted(os.listdir(folder)) == ["RUN.json", "checkpoints"]


@pytest.mark.parametrize("number", NO_SYNC)
def test_run_begins_where_directories_cannot_be_synced(
    directory: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first save tells of it."""
    monkeypatch.setattr(files, "sync", _fail(number))

    directory.create_record(RECORD)

    assert directory.load_record() == RECORD


def test_run_does_not_begin_where_syncing_a_directory_fails(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "sync", _fail(errno.EIO))

    with pytest.raises(RunUnreadable, match="nothing is known to be damaged"):
        directory.create_record(RECORD)


class Late:
    """A record that this host lists, and does not find for so many calls."""

    def __init__(self, misses: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = misses
        self._now = 0.0
        self._plain = files.read_at_most
        monkeypatch.setattr(files, "read_at_most", self._read)
        monkeypatch.setattr(files.time, "sleep", self._sleep)
        monkeypatch.setattr(files.time, "monotonic", lambda: self._now)

    def _read(self, path: Path, limit_bytes: int) -> bytes:
        if self.left > 0:
            self.left -= 1
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._plain(path, limit_bytes)

    def _sleep(self, seconds: float) -> None:
        self._now += seconds


def test_record_that_is_listed_and_not_found_is_waited_for(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host has begun the run, and this one remembers that there was none."""
    directory.create_record(RECORD)
    late = Late(20, monkeypatch)

    assert directory.load_record() == RECORD
    assert late.left == 0


def test_record_that_is_never_found_ends_the_job_and_not_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create_record(RECORD)
    Late(float("inf"), monkeypatch)

    with pytest.raises(RunUnreadable, match="listed, and yet not found") as refusal:
        directory.load_record()

    assert refusal.value.exit_code == ExitCode.STOPPED_EARLY


def test_record_that_is_not_listed_is_not_waited_for(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.time, "sleep", _fail(errno.EINTR))

    assert directory.load_record() is None
