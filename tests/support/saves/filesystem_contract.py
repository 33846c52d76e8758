"""The contract that every file system keeps, and what the local one keeps besides.

Test classes inherit from it, each for one implementation, or for one place of the files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.filesystem import DirectoryName, FileSystem


def errno_of(call: Callable[[], object]) -> int | None:
    """Return the errno that a call fails with, None if it succeeds."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def _count(owner: object, name: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call of a function of ``owner`` add its name to ``calls``."""
    plain = getattr(owner, name)

    def counted(*arguments: object, **named: object) -> object:
        calls.append(name)
        return plain(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)


class FileSystemContract:
    """What the store relies on; a subclass says for which implementation."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def files(self, root: Path) -> FileSystem:
        raise NotImplementedError

    def put(self, files: FileSystem, path: Path, data: bytes) -> None:
        handle = files.create_exclusive(path)
        assert files.write(handle, [memoryview(data)], 0) == len(data)
        files.fsync(handle)
        files.close(handle)

    def get(self, files: FileSystem, path: Path) -> bytes:
        handle = files.open_read(path)
        data = bytearray(files.size(handle))
        assert files.read(handle, memoryview(data), 0) == len(data)
        files.close(handle)
        return bytes(data)

    def test_reads_back_what_was_written_and_nothing_past_the_end(
        self, files: FileSystem, root: Path
    ) -> None:
        handle = files.create_exclusive(root / "file")
        files.allocate(handle, 12)
        assert files.write(handle, [memoryview(b"ab"), memoryview(b"cd")], 3) == 4
        files.fsync(handle)
        files.close(handle)

        assert self.get(files, root / "file") == b"\0\0\0abcd\0\0\0\0\0"
        handle = files.open_read(root / "file")
        assert files.read(handle, memoryview(bytearray(2)), 12) == 0
        files.close(handle)

    def test_hints_to_the_cache_change_no_content(self, files: FileSystem, root: Path) -> None:
        handle = files.create_exclusive(root / "file")
        files.write(handle, [memoryview(b"abcd")], 0)
        files.start_writeback(handle, 0, 4)
        files.write(handle, [memoryview(b"ef")], 4)
        files.fsync(handle)
        files.uncache(handle)
        files.close(handle)
        handle = files.open_read(root / "file")
        files.uncache(handle)
        files.close(handle)

        assert self.get(files, root / "file") == b"abcdef"

    def test_names_that_are_taken_or_missing_are_refused(
        self, files: FileSystem, root: Path
    ) -> None:
        self.put(files, root / "file", b"first")
        files.mkdir(root / "directory")

        for call in (
            lambda: files.create_exclusive(root / "file"),
            lambda: files.mkdir(root / "directory"),
        ):
            with pytest.raises(FileExistsError):
                call()
        for call in (
            lambda: files.create_exclusive(root / "missing" / "file"),
            lambda: files.open_read(root / "missing"),
            lambda: files.rename_noreplace(root / "old", root / "new"),
        ):
            with pytest.raises(FileNotFoundError):
                call()
        opened = errno_of(lambda: files.open_read(root / "directory"))
        assert opened in (errno.EINVAL, errno.EISDIR)
        assert self.get(files, root / "file") == b"first"

    def test_rename_moves_a_directory_with_its_files(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "old")
        self.put(files, root / "old" / "file", b"contents")

        files.rename_noreplace(root / "old", root / "new")
        files.fsync_directory(root)

        assert files.list(root) == ("new",)
        assert self.get(files, root / "new" / "file") == b"contents"

    def test_rename_refuses_an_existing_name(self, files: FileSystem, root: Path) -> None:
        for name in ("old", "new"):
            files.mkdir(root / name)
            self.put(files, root / name / "file", name.encode())

        refusal = errno_of(lambda: files.rename_noreplace(root / "old", root / "new"))

        assert refusal in (errno.EEXIST, errno.ENOTEMPTY)
        assert self.get(files, root / "new" / "file") == b"new"
        assert self.get(files, root / "old" / "file") == b"old"

    def test_lists_names_in_order_and_knows_directories(
        self, files: FileSystem, root: Path
    ) -> None:
        for name in ("b", "a"):
            files.mkdir(root / name)
        self.put(files, root / "file", b"")

        found = {name: isinstance(name, DirectoryName) for name in files.list(root)}

        assert list(found.items()) == [("a", True), ("b", True), ("file", False)]
        assert [files.is_directory(root / name) for name in (*found, "missing")] == [
            *found.values(),
            False,
        ]

    def test_removes_files_and_empty_directories_only(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")
        self.put(files, root / "directory" / "file", b"contents")

        refusal = errno_of(lambda: files.rmdir(root / "directory"))
        files.unlink(root / "directory" / "file")
        files.rmdir(root / "directory")

        assert refusal == errno.ENOTEMPTY
        assert files.list(root) == ()


class LocalFileSystemContract(FileSystemContract):
    """What links, modes and pipes are to the local one, wherever its files lie."""

    @pytest.fixture
    def files(self, root: Path) -> FileSystem:
        return FileSystem()

    @pytest.mark.parametrize(
        ("umask", "expected"),
        [(0o077, [0o700, 0o600]), (0o022, [0o755, 0o644]), (0o002, [0o775, 0o664])],
    )
    def test_umask_says_who_may_read_and_write(
        self, files: FileSystem, root: Path, umask: int, expected: list[int]
    ) -> None:
        before = os.umask(umask)
        try:
            files.mkdir(root / "directory")
            self.put(files, root / "file", b"secret")
        finally:
            os.umask(before)

        modes = [stat.S_IMODE((root / name).stat().st_mode) for name in ("directory", "file")]

        assert modes == expected

    def test_links_are_not_followed(self, files: FileSystem, root: Path) -> None:
        self.put(files, root / "file", b"secret")
        (root / "link").symlink_to(root / "file")
        (root / "directory link").symlink_to(root)

        reading = errno_of(lambda: files.open_read(root / "link"))

        assert reading == errno.ELOOP
        assert not files.is_directory(root / "directory link")

    def test_listing_takes_no_link_for_a_directory(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")
        (root / "link").symlink_to(root / "directory")
        os.mkfifo(root / "fifo")

        found = [name for name in files.list(root) if isinstance(name, DirectoryName)]

        assert found == ["directory"]

    def test_listing_many_names_is_one_reading_of_the_directory(
        self, files: FileSystem, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(1000):
            (root / f"{number:04d}").mkdir()
        calls: list[str] = []
        for name in ("open", "stat", "lstat", "scandir", "listdir"):
            _count(os, name, calls, monkeypatch)

        found = files.list(root)

        assert sum(isinstance(name, DirectoryName) for name in found) == 1000
        assert (calls.count("scandir"), len(calls) < 5) == (1, True)

    def test_fifo_is_refused_without_waiting(self, files: FileSystem, root: Path) -> None:
        os.mkfifo(root / "fifo")

        with pytest.raises(OSError, match="not a regular file"):
            files.open_read(root / "fifo")

    def test_writeback_of_no_file_fails(self, files: FileSystem, root: Path) -> None:
        handle = files.create_exclusive(root / "file")
        files.close(handle)

        assert errno_of(lambda: files.start_writeback(handle, 0, 1)) == errno.EBADF
