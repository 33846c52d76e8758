"""A step whose shards are snapshots in memory, as a file system that can only be read.

So the code that reads, verifies and mends from a directory works from memory as well.
There may be fewer snapshots than shards, and a snapshot may change while it is read:
only the digests vouch for it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from holdfast.checkpoint.disk.filesystem import DirectoryName
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.names import MANIFEST_NAME, shard_name, step_name
from holdfast.checkpoint.format.signature import SigningKey


class ImageFileSystem:
    """The files of one step below ``directory``, which is that of a store.

    They are the step's manifest, and each shard that has an image, by index.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        images: Mapping[int, memoryview],
        key: SigningKey | None = None,
    ) -> None:
        self._top = directory
        self._step = directory / step_name(manifest.step)
        self._files = {self._step / MANIFEST_NAME: memoryview(manifest.encode(key))}
        for index, image in images.items():
            self._files[self._step / shard_name(index, manifest.writers)] = image
        self._paths = tuple(self._files)

    def open_read(self, path: Path) -> int:
        """Return the handle of a file."""
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._paths.index(path)

    def size(self, handle: int) -> int:
        """Return the bytes of a file."""
        return len(self._contents(handle))

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Copy from a file into ``buffer``."""
        found = self._contents(handle)[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def uncache(self, handle: int) -> None:
        """Do nothing: memory is all there is."""

    def close(self, handle: int) -> None:
        """Do nothing: a handle is a number."""

    def list(self, path: Path) -> tuple[str, ...]:
        """Return the names in the store's directory or in that of the step."""
        if not self.is_directory(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path == self._top:
            return (DirectoryName(self._step.name),)
        return tuple(sorted(file.name for file in self._paths))

    def is_directory(self, path: Path) -> bool:
        """Return whether this is the store's directory or that of the step."""
        return path in (self._top, self._step)

    def mkdir(self, path: Path) -> None:
        """Refuse."""
        _refuse()

    def create_exclusive(self, path: Path) -> int:
        """Refuse."""
        _refuse()

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Refuse."""
        _refuse()

    def write(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Refuse."""
        _refuse()

    def start_writeback(self, handle: int, offset: int, size_bytes: int) -> None:
        """Refuse."""
        _refuse()

    def fsync(self, handle: int) -> None:
        """Refuse."""
        _refuse()

    def fsync_directory(self, path: Path) -> None:
        """Refuse."""
        _refuse()

    def rename_noreplace(self, source: Path, target: Path) -> None:
        """Refuse."""
        _refuse()

    def identity(self, path: Path) -> tuple[int, int]:
        """Refuse: nothing is renamed."""
        _refuse()

    def unlink(self, path: Path) -> None:
        """Refuse."""
        _refuse()

    def rmdir(self, path: Path) -> None:
        """Refuse."""
        _refuse()

    def capacity(self, path: Path) -> int:
        """Refuse: nothing is put here."""
        _refuse()

    def _contents(self, handle: int) -> memoryview:
        return self._files[self._paths[handle]]


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, "snapshots in memory are only read")
