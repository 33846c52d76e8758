"""Calls complete, or fail with one sentence and leave nothing half done."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from fake_filesystem import FakeFileSystem

from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import TRANSIENT, CheckpointUnreadable, StorageFailed
from holdfast.checkpoint.filesystem import FileSystem

ROOT = Path("/run")
FILE = ROOT / "file"
BUFFERS = [memoryview(b"head"), memoryview(b""), memoryview(b"tail")]
LARGE = [memoryview(bytes(16 * 2**20)), memoryview(b"the rest")]
"""The disk is told to begin with the first one, and a thread is worth its while."""


def contents(files: FileSystem, path: Path) -> bytes:
    disk = Disk(files)
    with disk.reading(path) as file:
        data = bytearray(file.size())
        file.read_into(memoryview(data), 0)
    return bytes(data)


class FullFileSystem(FakeFileSystem):
    """Takes no byte and reports no error."""

    def write(self, handle: int, buffers: object, offset: int) -> int:
        return 0


def test_write_without_progress_fails_instead_of_spinning() -> None:
    with pytest.raises(StorageFailed, match="takes no more bytes"):
        Disk(FullFileSystem()).write_durably(FILE, BUFFERS)


class InterruptedFileSystem(FakeFileSystem):
    """Never completes a call."""

    def mkdir(self, path: Path) -> None:
        raise InterruptedError(errno.EINTR, "interrupted")


def test_endless_interruptions_fail_instead_of_spinning() -> None:
    with pytest.raises(StorageFailed, match="interrupted without end"):
        Disk(InterruptedFileSystem()).make_directory(ROOT / "directory")


@pytest.mark.parametrize("operation", ["allocate", "write", "fsync", "close"])
def test_file_that_failed_is_removed_and_never_synced_again(operation: str) -> None:
    probe = FakeFileSystem()
    Disk(probe).write_durably(FILE, BUFFERS)
    call = [text.split()[0] for text in probe.calls].index(operation)
    files = FakeFileSystem()
    files.fail_at(call, errno.EIO)

    with pytest.raises(StorageFailed) as failure:
        Disk(files).write_durably(FILE, BUFFERS)

    later = [text.split()[0] for text in files.calls[call + 1 :]]
    assert failure.value.errno == errno.EIO
    assert later in (["close", "unlink"], ["unlink"])
    assert files.list(ROOT) == ()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_missing_directory_sync_is_a_recorded_downgrade(number: int) -> None:
    files = FakeFileSystem()
    files.fail_at(0, number)
    files.fail_at(1, number)
    disk = Disk(files)

    disk.fsync_directory(ROOT)
    disk.fsync_directory(ROOT)

    (told,) = disk.new_downgrades(set())
    assert "a power cut may lose names" in told


def test_parent_that_may_not_be_read_is_a_downgrade_of_the_parent_only() -> None:
    files = FakeFileSystem()
    files.fail_at(0, errno.EACCES)
    files.fail_at(1, errno.EACCES)
    disk = Disk(files)

    disk.fsync_directory(ROOT, is_outside=True)
    with pytest.raises(StorageFailed):
        disk.fsync_directory(ROOT)

    assert len(disk.new_downgrades(set())) == 1


def test_disk_works_while_the_rest_is_written() -> None:
    """Not for the end of the file, which the sync is about to write anyway."""
    files = FakeFileSystem()

    Disk(files).write_durably(FILE, LARGE)

    operations = [text.split()[0] for text in files.calls]
    assert operations == [
        *("create_exclusive", "allocate"),
        *("write", "start_writeback"),
        *("write", "fsync", "close"),
    ]
    assert contents(files, FILE) == b"".join(LARGE)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP])
def test_disk_that_cannot_begin_early_loses_no_guarantee(number: int) -> None:
    files = FakeFileSystem()
    disk = Disk(files)
    files.fail_at(3, number)

    disk.write_durably(FILE, LARGE)

    assert files.calls[3].startswith("start_writeback")
    assert contents(files, FILE) == b"".join(LARGE)
    assert disk.new_downgrades(set()) == ()


def test_failed_writeback_gives_the_file_up() -> None:
    """A later sync might claim success: the pages may be marked as clean."""
    files = FakeFileSystem()
    files.fail_at(3, errno.EIO)

    with pytest.raises(StorageFailed, match="cannot write back /run/file"):
        Disk(files).write_durably(FILE, LARGE)

    assert [text.split()[0] for text in files.calls[4:]] == ["close", "unlink"]


@pytest.mark.parametrize("buffers", [BUFFERS, LARGE], ids=["small", "large"])
def test_what_is_done_beside_a_write_is_done_at_its_end(buffers: list[memoryview]) -> None:
    files = FakeFileSystem()
    threads: list[int] = []

    Disk(files).write_durably(FILE, buffers, lambda: threads.append(threading.get_ident()))

    assert contents(files, FILE) == b"".join(buffers)
    assert [thread == threading.get_ident() for thread in threads] == [buffers is BUFFERS]


@pytest.mark.parametrize("buffers", [BUFFERS, LARGE], ids=["small", "large"])
def test_failure_of_what_is_done_beside_leaves_no_file(buffers: list[memoryview]) -> None:
    files = FakeFileSystem()

    def fail() -> None:
        raise KeyError("not what it was")

    with pytest.raises(KeyError, match="not what it was"):
        Disk(files).write_durably(FILE, buffers, fail)

    assert files.list(ROOT) == ()


def test_reading_past_the_end_fails() -> None:
    files = FakeFileSystem()
    disk = Disk(files)
    disk.write_durably(FILE, [memoryview(b"short")])

    with disk.reading(FILE) as file, pytest.raises(StorageFailed, match="the file ends early"):
        file.read_into(memoryview(bytearray(6)), 0)


def test_tree_that_is_deeper_than_calls_may_be_is_removed(tmp_path: Path) -> None:
    top = path = tmp_path / "top"
    depth = sys.getrecursionlimit() + 100
    for _ in range(depth):
        path.mkdir()
        path /= "d"
    path.write_bytes(b"at the bottom")

    Disk().remove_tree(top)

    assert list(tmp_path.iterdir()) == []


def test_disk_tells_how_much_is_being_written_and_each_read() -> None:
    """The bytes of a file count from before its first write until it is durable."""
    files = FakeFileSystem()
    disk = Disk(files)
    told: list[int] = []
    disk.watch(told.append)

    disk.write_durably(FILE, BUFFERS, beside=lambda: told.append(1))

    assert told == [8, 1, -8]
    told.clear()
    with disk.reading(FILE) as file:
        file.read_into(memoryview(bytearray(8)), 0)
        assert told == [0]
    disk.remove_file(FILE)
    assert told == [0, 0]


def test_file_that_cannot_be_written_is_told_to_its_end() -> None:
    disk = Disk(FullFileSystem())
    told: list[int] = []
    disk.watch(told.append)

    with pytest.raises(StorageFailed):
        disk.write_durably(FILE, BUFFERS)

    assert told == [8, -8]


class LostAnswer(FileSystem):
    """A server that renames; the client asks again, since no answer came, and is told this."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def rename_noreplace(self, source: Path, target: Path) -> None:
        super().rename_noreplace(source, target)
        raise OSError(self._number, "the answer to the second question")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EEXIST, errno.EIO, errno.ESTALE])
def test_rename_whose_answer_was_lost_is_one_that_was_done(number: int, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("contents")

    Disk(LostAnswer(number)).rename(tmp_path / "old", tmp_path / "new")

    assert (tmp_path / "new" / "file").read_text() == "contents"


@pytest.mark.parametrize("has_source", [True, False])
def test_rename_that_found_another_one_at_its_target_has_failed(
    *, has_source: bool, tmp_path: Path
) -> None:
    """Somebody else has removed the source, and made the target."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_text("another's")
    if has_source:
        (tmp_path / "old").mkdir()

    with pytest.raises(StorageFailed) as failure:
        Disk().rename(tmp_path / "old", tmp_path / "new")

    assert failure.value.errno == (errno.EEXIST if has_source else errno.ENOENT)
    assert (tmp_path / "new" / "file").read_text() == "another's"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE, 0, 9999])
def test_storage_failure_says_what_to_do(number: int) -> None:
    failure = StorageFailed("fsync", Path("/a/b"), OSError(number, os.strerror(number)))

    assert str(failure).startswith(f"cannot fsync /a/b: {os.strerror(number)} (")
    assert re.search(r"\); [a-z]+ [a-z ]+", str(failure)), "what to do"
    assert failure.errno == number


@pytest.mark.parametrize("number", sorted(TRANSIENT))
def test_unreadable_checkpoint_is_called_neither_invalid_nor_damaged(number: int) -> None:
    failure = StorageFailed("open", Path("/a/b"), OSError(number, os.strerror(number)))

    error = CheckpointUnreadable.of(30, failure)

    assert (error.step, error.errno, error.path) == (30, number, Path("/a/b"))
    assert str(error).startswith("checkpoint step 30 could not be read: cannot open /a/b: ")
    assert str(error).endswith("; it is not known to be damaged: try again")
    assert "is invalid" not in str(error)
