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

    def test_reads_back_what_was_written(self, files: FileSystem, root: Path) -> None:
        handle = files.create_exclusive(root / "file")
        files.allocate(handle, 12)
        assert files.write(handle, [memoryview(b"ab"), memoryview(b"cd")], 3) == 4
        files.fsync(handle)
        files.close(handle)

        assert self.get(files, root / "file") == b"\0\0\0abcd\0\0\0\0\0"

    def test_uncached_file_has_its_contents(self, files: FileSystem, root: Path) -> None:
        handle = files.create_exclusive(root / "file")
        files.write(handle, [memoryview(b"data")], 0)
        files.fsync(handle)
        buffer = bytearray(4)

        files.uncache(handle)

        files.close(handle)
        handle = files.open_read(root / "file")
        files.uncache(handle)
        assert files.read(handle, memoryview(buffer), 0) == 4
        assert buffer == b"data"
        files.close(handle)

    def test_writeback_that_was_begun_changes_nothing(self, files: FileSystem, root: Path) -> None:
        handle = files.create_exclusive(root / "file")
        files.write(handle, [memoryview(b"abcd")], 0)
        files.start_writeback(handle, 0, 4)
        files.write(handle, [memoryview(b"ef")], 4)
        files.close(handle)

        assert self.get(files, root / "file") == b"abcdef"

    def test_read_past_the_end_returns_nothing(self, files: FileSystem, root: Path) -> None:
        self.put(files, root / "file", b"abc")
        handle = files.open_read(root / "file")

        assert files.read(handle, memoryview(bytearray(2)), 3) == 0

        files.close(handle)

    def test_create_refuses_an_existing_name(self, files: FileSystem, root: Path) -> None:
        self.put(files, root / "file", b"first")

        with pytest.raises(FileExistsError):
            files.create_exclusive(root / "file")

        assert self.get(files, root / "file") == b"first"

    def test_create_refuses_a_missing_directory(self, files: FileSystem, root: Path) -> None:
        with pytest.raises(FileNotFoundError):
            files.create_exclusive(root / "missing" / "file")

    def test_mkdir_refuses_an_existing_name(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")

        with pytest.raises(FileExistsError):
            files.mkdir(root / "directory")

    def test_open_refuses_what_is_not_a_file(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")

        directory = errno_of(lambda: files.open_read(root / "directory"))
        with pytest.raises(FileNotFoundError):
            files.open_read(root / "missing")

        assert directory in (errno.EINVAL, errno.EISDIR)

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

    def test_rename_refuses_a_missing_source(self, files: FileSystem, root: Path) -> None:
        with pytest.raises(FileNotFoundError):
            files.rename_noreplace(root / "old", root / "new")

    def test_list_is_ascending(self, files: FileSystem, root: Path) -> None:
        for name in ("b", "c", "a"):
            files.mkdir(root / name)

        assert files.list(root) == ("a", "b", "c")

    def test_list_tells_directories_from_other_names(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")
        self.put(files, root / "file", b"")

        kinds = {name: isinstance(name, DirectoryName) for name in files.list(root)}

        assert kinds == {"directory": True, "file": False}

    def test_removes_files_and_empty_directories_only(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")
        self.put(files, root / "directory" / "file", b"contents")

        refusal = errno_of(lambda: files.rmdir(root / "directory"))
        files.unlink(root / "directory" / "file")
        files.rmdir(root / "directory")

        assert refusal == errno.ENOTEMPTY
        assert files.list(root) == ()

    def test_knows_directories(self, files: FileSystem, root: Path) -> None:
        files.mkdir(root / "directory")
        self.put(files, root / "file", b"")

        answers = [files.is_directory(root / name) for name in ("directory", "file", "missing")]

        assert answers == [True, False, False]


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
