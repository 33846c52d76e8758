"""A Python whose loading hangs as long as a test likes, as one on a file server that is away.

The kernel holds each execve(2) of it for a listener that does not answer (fanotify(7)).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KERNEL = ctypes.CDLL(None, use_errno=True)
_CONTENT, _CLOEXEC, _OF_EXEC, _ADD, _HERE = 4, 1, 0x40000, 1, -100  # linux/fanotify.h, AT_FDCWD


def own_python(folder: Path) -> Path:
    """Return a copy of this Python, which finds all modules that this one does."""
    home = Path(sys.prefix)
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "python3"
    shutil.copy2(os.path.realpath(sys.executable), program)
    shutil.copy2(home / "pyvenv.cfg", folder)
    (folder / "lib").symlink_to(home / "lib")
    return program


@contextmanager
def held(program: Path) -> Iterator[None]:
    """Let every start of a program hang until the end of the block.

    Raises ``PermissionError`` where only root may do so.
    """
    listener = _KERNEL.fanotify_init(_CONTENT | _CLOEXEC, os.O_RDONLY)
    if listener < 0:
        raise PermissionError(os.strerror(ctypes.get_errno()))
    try:
        mask = ctypes.c_uint64(_OF_EXEC)
        failed = _KERNEL.fanotify_mark(listener, _ADD, mask, _HERE, os.fsencode(program))
        assert not failed, os.strerror(ctypes.get_errno())
        yield
    finally:
        os.close(listener)
