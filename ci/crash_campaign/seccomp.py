"""Seccomp's user notification: a process whose system calls wait until another one has decided.

The child installs a filter over some calls and hands its listener to the parent.  Each such
call of any of its threads then waits in the kernel.  The parent lets it happen, or answers
it with an errno, and may look at the world before it does so.  See seccomp_unotify(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

# asm/unistd.h; "-" where the architecture lacks the call
_NUMBERS = """
    read 0 63
    write 1 64
    open 2 -
    close 3 57
    stat 4 -
    fstat 5 80
    lstat 6 -
    pread64 17 67
    pwrite64 18 68
    flock 73 32
    fsync 74 82
    fdatasync 75 83
    ftruncate 77 46
    rename 82 -
    mkdir 83 -
    rmdir 84 -
    link 86 -
    unlink 87 -
    fstatfs 138 44
    getdents64 217 61
    openat 257 56
    mkdirat 258 34
    newfstatat 262 79
    unlinkat 263 35
    renameat 264 38
    linkat 265 37
    sync_file_range 277 84
    fallocate 285 47
    preadv 295 69
    pwritev 296 70
    renameat2 316 276
    preadv2 327 286
    pwritev2 328 287
    statx 332 291
"""
_COLUMNS = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""The column of each architecture, and its name in a filter (linux/audit.h)."""
_SECCOMP = {"x86_64": 317, "aarch64": 277}

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_SET_FLAGS, _SYNC_WAKE_UP = 0x40082104, 1
_NOTICE, _ANSWER = struct.Struct("QIIiIQ6Q"), struct.Struct("QqiI")
_GO_ON = 1


class SeccompMissing(Exception):
    """The kernel, or the architecture, cannot hand system calls over."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A call that waits: its ticket, its thread, its name and its arguments."""

    ticket: int
    thread: int
    name: str
    arguments: tuple[int, ...]


def names() -> dict[int, str]:
    """Return the calls that can be handed over, by their numbers on this machine."""
    machine = platform.machine()
    if machine not in _COLUMNS:
        raise SeccompMissing(f"the numbers of system calls on {machine} are not known here")
    column, _ = _COLUMNS[machine]
    rows = [row.split() for row in _NUMBERS.strip().splitlines()]
    return {int(row[column]): row[0] for row in rows if row[column] != "-"}


def hand_over(connection: socket.socket) -> None:
    """Let each such call of this process wait from now on; send the listener to the parent.

    Raises ``SeccompMissing`` if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = _filter(names())
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    number = _SECCOMP[platform.machine()]
    listener = libc.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.c_char_p(program))
    if listener < 0:
        raise SeccompMissing(f"seccomp: {os.strerror(ctypes.get_errno())}")
    socket.send_fds(connection, [b"x"], [listener])
    # Not closed: the close would wait, and the parent may not be ready yet.


def _filter(numbers: Iterable[int]) -> list[bytes]:
    wanted = list(numbers)
    _, architecture = _COLUMNS[platform.machine()]
    rows = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 0, len(wanted) + 1, architecture)]
    rows.append((_LOAD, 0, 0, _NUMBER_AT))
    rows += [(_EQUAL, len(wanted) - at, 0, number) for at, number in enumerate(wanted)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    return [struct.pack("HBBI", *row) for row in rows]


class Listener:
    """The parent's end: takes calls that wait, and answers them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._names = names()
        # Linux 6.6: the two processes take turns, so one core is quicker than two.
        with contextlib.suppress(OSError):
            fcntl.ioctl(descriptor, _SET_FLAGS, _SYNC_WAKE_UP)

    def fileno(self) -> int:
        """Return the descriptor, for a poll."""
        return self._descriptor

    def receive(self) -> Notice | None:
        """Return the next call that waits, None if its process has died meanwhile."""
        room = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._descriptor, _RECEIVE, room, True)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise
            return None
        ticket, thread, _, number, _, _, *arguments = _NOTICE.unpack(room)
        return Notice(ticket, thread, self._names[number], tuple(arguments))

    def answer(self, notice: Notice, number: int = 0) -> None:
        """Let a call fail with an errno, or let it happen if that is 0."""
        found = _ANSWER.pack(notice.ticket, 0, -number, 0 if number else _GO_ON)
        try:
            fcntl.ioctl(self._descriptor, _SEND, bytearray(found), True)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # it has died
                raise

    def close(self) -> None:
        """Let go of the process; calls of it fail from now on."""
        os.close(self._descriptor)
