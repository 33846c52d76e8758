"""The seam to the file system: few calls, each of which maps to one system call.

Everything durable goes through ``FileSystem``, so that a fake, which overrides each call, can
fail any call and cut the power after any call.  All raise ``OSError`` and decide nothing:
retries, messages and fallbacks are ``Disk``'s.

Handles are small integers.  ``write`` and ``read`` may move fewer bytes than
asked, as the system calls may.  What the ``os`` module lacks is called through the libc's
plain wrappers, without the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_RENAME_NOREPLACE = 1  # linux/fs.h
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_RESERVE = 0  # no flag of linux/falloc.h: blocks are taken, and the file gets the size

READ_BYTES_PER_S = 200e6
"""A tenth of a fast local disk; a slow one is slower by itself."""
_LONGEST_PAUSE_S = 1.0


class DirectoryName(str):
    """The name of a directory, as the listing tells that it is one, and not a link to one.

    It is a name like any other, so a wrapper of ``list`` passes the kind on.  Asking for
    the kind of each name costs several calls a name, which counts where a store has
    thousands of steps on a network file system.
    """

    __slots__ = ()


class FileSystem:
    """The file system of this machine.

    Below ``root`` no symbolic link is followed, not even one that appears during a call:
    each call goes down from the root, directory by directory.  Links in the path of the
    root, and in paths outside the root, are followed.

    ``fence`` proves that the root is still its owner's, and raises if it is not.  It is
    called before each rename and removal, when the directories are open already.  So a root
    that is replaced after the proof is not the one that is changed.
    """

    def __init__(self, root: Path | None = None, fence: Callable[[], None] = lambda: None) -> None:
        self._root = root
        self._fence = fence

    def mkdir(self, path: Path) -> None:
        """Make a directory as the umask allows; fails if anything of that name exists."""
        with self._parent(path) as parent:
            os.mkdir(path.name, dir_fd=parent)

    def create_exclusive(self, path: Path) -> int:
        """Create a file in the same way, open it for writing; fails if the name is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with self._parent(path) as parent:
            return os.open(path.name, flags, 0o666, dir_fd=parent)

    def open_read(self, path: Path) -> int:
        """Open a regular file for reading; links, FIFOs and all else are refused at once."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        with self._parent(path) as parent:
            handle = os.open(path.name, flags, dir_fd=parent)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")

    def size(self, handle: int) -> int:
        """Return the bytes of an open file."""
        return os.fstat(handle).st_size

    def allocate(self, handle: int, size_bytes: int) -> None:
        """Reserve blocks, so that a full disk is noticed before anything is written.

        That is fallocate(2) itself.  It fails with ``EOPNOTSUPP`` where the file system reserves
        nothing.  posix_fallocate(3) does not: glibc then writes a byte into every block, so the
        file is written twice and nothing is reserved.
        """
        start, size = ctypes.c_int64(0), ctypes.c_int64(size_bytes)
        while True:
            try:
                _call("fallocate", handle, _RESERVE, start, size)
            except InterruptedError:  # repeated as the os module does (PEP 475)
                continue
            return

    def write(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write consecutive buffers at ``offset``, without the GIL; return the bytes taken."""
        return os.pwritev(handle, buffers, offset)

    def start_writeback(self, handle: int, offset: int, size_bytes: int) -> None:
        """Let the disk begin to write these bytes, by sync_file_range(2); nothing gets durable."""
        # Waiting is left to fsync: a wait here would take an error that fsync must see.
        start, size = ctypes.c_int64(offset), ctypes.c_int64(size_bytes)
        _call("sync_file_range", handle, start, size, ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``, without the GIL; return the bytes read, 0 at the end."""
        return os.preadv(handle, [buffer], offset)

    def uncache(self, handle: int) -> None:
        """Drop an open file's pages from memory, so that the next read comes from the disk."""
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def fsync(self, handle: int) -> None:
        """Make the contents of an open file durable."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a handle; it is gone even if this fails."""
        os.close(handle)

    def fsync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        with self._opened(path, os.O_RDONLY) as directory:
            os.fsync(directory)

    def rename_noreplace(self, source: Path, target: Path) -> None:
        """Rename, by renameat2(2) where there is one; fails with ``EEXIST`` if the name is taken.

        Elsewhere rename(2) must do: it refuses to put a directory onto one that
        is not empty, and a committed checkpoint never is.
        """
        with self._parent(source) as old, self._parent(target) as new:
            self._fence()
            if not renameat2((old, source.name), (new, target.name)):
                os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)

    def list(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory, in ascending order, by one reading of it.

        Those of directories are of the type ``DirectoryName``.  The few file systems that tell no
        kinds are asked for each.
        """
        with self._opened(path, os.O_RDONLY) as directory, os.scandir(directory) as found:
            return tuple(sorted(map(_name_of, found)))

    def is_directory(self, path: Path) -> bool:
        """Return whether ``path`` is a directory itself, not a link to one."""
        try:
            with self._parent(path) as parent:
                found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISDIR(found.st_mode)

    def identity(self, path: Path) -> tuple[int, int]:
        """Return what tells ``path`` from every other file that exists: device and inode."""
        with self._parent(path) as parent:
            found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        return found.st_dev, found.st_ino

    def unlink(self, path: Path) -> None:
        """Remove a name; the file itself goes with its last name."""
        with self._parent(path) as parent:
            self._fence()
            os.unlink(path.name, dir_fd=parent)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        with self._parent(path) as parent:
            self._fence()
            os.rmdir(path.name, dir_fd=parent)

    @contextlib.contextmanager
    def _parent(self, path: Path) -> Iterator[int]:
        """Open the directory that holds a name, for calls that take a name in a directory."""
        with self._opened(path.parent, os.O_PATH) as handle:
            yield handle

    @contextlib.contextmanager
    def _opened(self, path: Path, access: int) -> Iterator[int]:
        """Open a directory, going down from the root if it lies below it."""
        is_below = self._root is not None and path.is_relative_to(self._root)
        below = path.relative_to(self._root).parts if self._root and is_below else ()
        if self._root is None or not below:
            handle = os.open(path, os.O_DIRECTORY | access)
        else:
            handle = os.open(self._root, os.O_DIRECTORY | os.O_PATH)
        try:
            for depth, name in enumerate(below, start=1):
                flags = access if depth == len(below) else os.O_PATH
                outer = handle
                handle = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | flags, dir_fd=outer)
                _close_directory(outer)
            yield handle
        finally:
            _close_directory(handle)


def _name_of(entry: os.DirEntry[str]) -> str:
    return DirectoryName(entry.name) if entry.is_dir(follow_symlinks=False) else entry.name


def _close_directory(handle: int) -> None:
    """Close a directory and ignore a failure: nothing was written to it."""
    with contextlib.suppress(OSError):
        os.close(handle)


class PacedFileSystem(FileSystem):
    """The local file system, read at ``bytes_per_s`` at most on average.

    For work that nobody waits for: a read-back of a large step at full speed
    takes the disk, or the server of all jobs, from saves and restores.  A pause after each
    read lasts until the bytes so far have taken their time.  It is short, so the reader can
    be told to end between two.

    ``pause`` waits for the given seconds; ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        root: Path,
        bytes_per_s: float = READ_BYTES_PER_S,
        *,
        fence: Callable[[], None] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(root, fence)
        self._bytes_per_s = bytes_per_s
        self._pause = pause
        self._clock = clock
        self._free_at = 0.0
        self._is_over = False

    def end(self) -> None:
        """Let every read fail from now on, as one that may succeed later."""
        self._is_over = True

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``, then pause; return how many bytes came."""
        if self._is_over:
            raise OSError(errno.EAGAIN, "the reading was ended")
        began = self._clock()
        count = super().read(handle, buffer, offset)
        self._free_at = max(self._free_at, began) + count / self._bytes_per_s
        while not self._is_over and (seconds := self._free_at - self._clock()) > 0:
            self._pause(min(seconds, _LONGEST_PAUSE_S))
        return count


def renameat2(source: tuple[int, str], target: tuple[int, str]) -> bool:
    """Rename without replacing; return False where kernel, libc or file system cannot.

    Source and target are a directory's descriptor and a name in it.
    """
    old, new = os.fsencode(source[1]), os.fsencode(target[1])
    try:
        _call("renameat2", source[0], old, target[0], new, ctypes.c_uint(_RENAME_NOREPLACE))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            return False
        raise OSError(error.errno, error.strerror, source[1], None, target[1]) from None
    return True


def _call(name: str, *arguments: object) -> None:
    """Call a function of the libc; fails with ``ENOSYS`` where there is none."""
    function = _function(name)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _function(name: str) -> Callable[..., Any] | None:
    return getattr(_libc(), name, None)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
