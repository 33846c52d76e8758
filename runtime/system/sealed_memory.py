"""Memory without a name that other processes can map, and whose size is fixed."""

from __future__ import annotations

import fcntl
import os

# linux/fcntl.h and linux/memfd.h; Python 3.10 does not name the seals
_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4


def sealed_memory(name: str, size: int) -> int:
    """Return a descriptor of ``size`` zero bytes that take no memory before they are written.

    Memory that could shrink would end its readers with SIGBUS.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
    return fd
