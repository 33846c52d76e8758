"""The contract of file systems, kept by the local one and by the fake."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_filesystem import FakeFileSystem
from filesystem_contract import FileSystemContract, LocalFileSystemContract, errno_of

from holdfast.checkpoint import filesystem as module
from holdfast.checkpoint.filesystem import FileSystem, LocalFileSystem


class TestLocalFileSystem(LocalFileSystemContract):
    """Where pytest's temporary files lie."""


class TestLocalFileSystemBelowRoot(LocalFileSystemContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "root" / "inner").mkdir(parents=True)
        return tmp_path / "root" / "inner"

    @pytest.fixture
    def files(self, root: Path) -> FileSystem:
        return LocalFileSystem(root.parent)

    def test_no_call_goes_through_a_link_to_a_directory(
        self, files: FileSystem, root: Path, tmp_path: Path
    ) -> None:
        self.put(files, root / "file", b"contents")
        (root / "directory").mkdir()
        (root / "link").symlink_to(root)
        link = root / "link"

        calls: list[Callable[[], object]] = [
            lambda: files.open_read(link / "file"),
            lambda: files.create_exclusive(link / "new"),
            lambda: files.mkdir(link / "new"),
            lambda: files.list(link),
            lambda: files.fsync_directory(link),
            lambda: files.is_directory(link / "directory"),
            lambda: files.rename_noreplace(link / "file", link / "new"),
            lambda: files.rename_noreplace(root / "file", link / "new"),
            lambda: files.unlink(link / "file"),
            lambda: files.rmdir(link / "directory"),
            lambda: files.capacity(link),
        ]
        assert [errno_of(call) for call in calls] == [errno.ENOTDIR] * len(calls)
        assert files.list(root) == ("directory", "file", "link")

    def test_no_call_leaves_a_descriptor_behind(self, files: FileSystem, root: Path) -> None:
        before = os.listdir("/proc/self/fd")

        self.put(files, root / "file", b"contents")
        files.mkdir(root / "directory")
        files.rename_noreplace(root / "directory", root / "new")
        errno_of(lambda: files.list(root / "missing" / "deeper"))
        files.fsync_directory(root)
        files.rmdir(root / "new")

        assert os.listdir("/proc/self/fd") == before


class TestLocalFileSystemWithoutRenameat2(LocalFileSystemContract):
    """Plain rename(2) refuses to replace a directory that is not empty."""

    @pytest.fixture(autouse=True)
    def _old_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "renameat2", lambda source, target: False)


class TestFakeFileSystem(FileSystemContract):
    @pytest.fixture
    def root(self) -> Path:
        return Path("/run")

    @pytest.fixture
    def files(self, root: Path) -> FileSystem:
        return FakeFileSystem(root)
