"""The seam to the file system: few calls, each of which maps to one system call.

Everything durable goes through ``FileSystem``, so that a fake can fail any call
and cut the power after any call.  Implementations raise ``OSError`` and decide
nothing: retries, messages and fallbacks are ``Disk``'s.

Handles are small integers.  ``write`` and ``read`` may move fewer bytes than
asked, as the system calls may.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

_RENAME_NOREPLACE = 1  # linux/fs.h
_AT_FDCWD = -100  # fcntl.h


class FileSystem(Protocol):
    """The calls that a checkpoint store makes; all raise ``OSError``."""

    def mkdir(self, path: Path) -> None:
        """Make a private directory; fails if anything of that name exists."""

    def create_exclusive(self, path: Path) -> int:
        """Create a private file, open it for writing; fails if anything of that name exists."""

    def open_read(self, path: Path) -> int:
        """Open a regular file for reading; fails for links and anything else."""

    def size(self, handle: int) -> int:
        """Return the bytes of an open file."""

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Reserve blocks, so that a full disk is noticed before anything is written."""

    def write(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write consecutive buffers at ``offset``; return how many bytes were taken."""

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; return how many bytes came, 0 at the end."""

    def uncache(self, handle: int) -> None:
        """Forget what memory holds of an open file, so that it is read from the disk."""

    def fsync(self, handle: int) -> None:
        """Make the contents of an open file durable."""

    def close(self, handle: int) -> None:
        """Close a handle; the handle is gone even if this fails."""

    def fsync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def rename_noreplace(self, source: Path, target: Path) -> None:
        """Rename; fails with ``EEXIST`` if anything of the new name exists."""

    def list(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory, in ascending order."""

    def is_directory(self, path: Path) -> bool:
        """Return whether ``path`` is a directory itself, not a link to one."""

    def unlink(self, path: Path) -> None:
        """Remove a file."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""


class LocalFileSystem:
    """The file system of this machine."""

    def mkdir(self, path: Path) -> None:
        """Make a directory of mode 0700."""
        os.mkdir(path, DIRECTORY_MODE)

    def create_exclusive(self, path: Path) -> int:
        """Create a file of mode 0600."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)

    def open_read(self, path: Path) -> int:
        """Open a regular file; a FIFO does not block, it is refused."""
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")

    def size(self, handle: int) -> int:
        """Return the bytes of an open file."""
        return os.fstat(handle).st_size

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Reserve blocks by posix_fallocate(3)."""
        os.posix_fallocate(handle, 0, size_bytes)

    def write(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write by pwritev(2), without the GIL."""
        return os.pwritev(handle, buffers, offset)

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Read by preadv(2), without the GIL."""
        return os.preadv(handle, [buffer], offset)

    def uncache(self, handle: int) -> None:
        """Drop clean pages by posix_fadvise(2)."""
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def fsync(self, handle: int) -> None:
        """Sync data and size."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Release the descriptor."""
        os.close(handle)

    def fsync_directory(self, path: Path) -> None:
        """Open the directory, call fsync(2) on it."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename_noreplace(self, source: Path, target: Path) -> None:
        """Rename by renameat2(2) where there is one.

        Elsewhere rename(2) must do: it refuses to put a directory onto one that
        is not empty, and a committed checkpoint never is.
        """
        if not _renameat2(source, target):
            os.rename(source, target)

    def list(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory."""
        return tuple(sorted(os.listdir(path)))

    def is_directory(self, path: Path) -> bool:
        """Call lstat(2)."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def unlink(self, path: Path) -> None:
        """Remove a name; the file goes with its last one."""
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _renameat2(source: Path, target: Path) -> bool:
    """Rename without replacing; return False where kernel, libc or file system cannot."""
    function = getattr(_libc(), "renameat2", None)
    if function is None:
        return False
    old, new = os.fsencode(source), os.fsencode(target)
    if function(_AT_FDCWD, old, _AT_FDCWD, new, ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))
