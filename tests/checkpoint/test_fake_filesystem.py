"""The fake forgets what was not synced, and only that."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fake_filesystem import FakeFileSystem, PowerCut, Survival

ROOT = Path("/run")
FILE = ROOT / "file"


def put(files: FakeFileSystem, path: Path, data: bytes, *, is_synced: bool) -> None:
    handle = files.create_exclusive(path)
    files.write(handle, [memoryview(data)], 0)
    if is_synced:
        files.fsync(handle)
    files.close(handle)


def contents(files: FakeFileSystem, path: Path) -> bytes | None:
    try:
        handle = files.open_read(path)
    except FileNotFoundError:
        return None
    data = bytearray(files.size(handle))
    files.read(handle, memoryview(data), 0)
    return bytes(data)


def test_synced_file_in_synced_directory_survives_everything() -> None:
    files = FakeFileSystem()
    put(files, FILE, b"data", is_synced=True)
    files.fsync_directory(ROOT)

    found = {contents(files.after_power_cut(survival), FILE) for survival in Survival}

    assert found == {b"data"}


def test_name_without_directory_sync_is_lost() -> None:
    files = FakeFileSystem()
    put(files, FILE, b"data", is_synced=True)

    assert contents(files.after_power_cut(Survival.NOTHING), FILE) is None


def test_contents_without_sync_are_lost_though_the_name_survives() -> None:
    files = FakeFileSystem()
    put(files, FILE, b"data", is_synced=False)

    assert contents(files.after_power_cut(Survival.NAMES), FILE) == b""


def test_anything_is_old_new_or_torn_and_each_happens() -> None:
    files = FakeFileSystem()
    put(files, FILE, b"data", is_synced=False)
    files.fsync_directory(ROOT)

    found = {contents(files.after_power_cut(Survival.ANYTHING, seed), FILE) for seed in range(80)}

    assert found == {b"", b"d", b"da", b"dat", b"data"}


def test_rename_without_sync_is_old_or_new_never_both_or_neither() -> None:
    files = FakeFileSystem()
    files.mkdir(ROOT / "old")
    files.fsync_directory(ROOT)
    files.rename_noreplace(ROOT / "old", ROOT / "new")

    found = {files.after_power_cut(Survival.ANYTHING, seed).list(ROOT) for seed in range(20)}

    assert found == {("old",), ("new",)}


def test_removal_without_sync_comes_back() -> None:
    files = FakeFileSystem()
    put(files, FILE, b"data", is_synced=True)
    files.fsync_directory(ROOT)
    files.unlink(FILE)

    assert contents(files, FILE) is None
    assert contents(files.after_power_cut(Survival.NOTHING), FILE) == b"data"


def test_failed_sync_loses_what_a_later_one_claims_to_keep() -> None:
    """As Linux does: the pages are marked clean when the first sync fails."""
    files = FakeFileSystem()
    handle = files.create_exclusive(FILE)
    files.fsync_directory(ROOT)
    files.write(handle, [memoryview(b"data")], 0)
    files.fail_at(len(files.calls), errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        files.fsync(handle)
    files.fsync(handle)

    assert contents(files.after_power_cut(Survival.NOTHING), FILE) == b""


def test_writeback_makes_nothing_durable_and_may_lose_all_of_it() -> None:
    begun, failed = FakeFileSystem(), FakeFileSystem()
    for files in (begun, failed):
        handle = files.create_exclusive(FILE)
        files.fsync_directory(ROOT)
        files.write(handle, [memoryview(b"data")], 0)
    begun.start_writeback(handle, 0, 4)
    failed.fail_at(len(failed.calls), errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        failed.start_writeback(handle, 0, 4)
    failed.fsync(handle)

    for files in (begun, failed):
        assert contents(files.after_power_cut(Survival.NOTHING), FILE) == b""


def test_failure_strikes_its_call_only_and_does_nothing() -> None:
    files = FakeFileSystem()
    files.fail_at(1, errno.ENOSPC)
    files.mkdir(ROOT / "a")

    with pytest.raises(OSError, match="No space left"):
        files.mkdir(ROOT / "b")
    files.mkdir(ROOT / "c")

    assert files.list(ROOT) == ("a", "c")


def test_no_call_works_without_power() -> None:
    files = FakeFileSystem()
    files.cut_power_at(1)
    files.mkdir(ROOT / "a")

    for _ in range(3):
        with pytest.raises(PowerCut):
            files.list(ROOT)

    assert files.after_power_cut(Survival.NAMES).list(ROOT) == ("a",)


def test_shortened_calls_move_half() -> None:
    files = FakeFileSystem()
    handle = files.create_exclusive(FILE)
    files.shorten_at(1)
    files.shorten_at(2)

    written = files.write(handle, [memoryview(b"abcd"), memoryview(b"ef")], 0)
    read = files.read(handle, memoryview(bytearray(3)), 0)

    assert (written, read) == (3, 2)
