"""Linux's calls for files that the ``os`` module has not, or has in another form.

The libc's plain wrappers are called, without the interpreter's lock.  All raise ``OSError``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_RENAME_NOREPLACE = 1  # linux/fs.h
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_RESERVE = 0  # no flag of linux/falloc.h: blocks are taken, and the file gets the size


def fallocate(handle: int, size_bytes: int) -> None:
    """Reserve the blocks of a file of this size by the system call itself.

    It fails with ``EOPNOTSUPP`` where the file system reserves nothing.  posix_fallocate(3)
    does not: glibc then writes a byte into every block, so the file is written twice and
    nothing is reserved.
    """
    start, size = ctypes.c_int64(0), ctypes.c_int64(size_bytes)
    while True:
        try:
            _call("fallocate", handle, _RESERVE, start, size)
        except InterruptedError:  # repeated as the os module does (PEP 475)
            continue
        return


def sync_file_range(handle: int, offset: int, size_bytes: int) -> None:
    """Let the disk begin to write these bytes, and wait for nothing."""
    # Waiting is left to fsync: a wait here would take an error that fsync must see.
    start, size = ctypes.c_int64(offset), ctypes.c_int64(size_bytes)
    _call("sync_file_range", handle, start, size, ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


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
    found: Callable[..., Any] | None = getattr(_libc(), name, None)
    return found


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
