"""The process that becomes mpiexec, or a remote shell.

By path it is a program: ``python -I -S become.py PARENT ASK HEAR PROGRAM ...``.  The program must
die with its parent, the agent.  Without an agent no rank can live, and a stopped mpiexec would stay
for ever.  A shell that waits for a dead link would stay for minutes.  The kernel sees to that, but
each process has to ask for itself (prctl(2)).  A wish made before execve(2) stays.

mpiexec listens on all network interfaces for daemons of other hosts, which there are not, and no
option changes that.  So the kernel asks the agent about each ``bind`` of it (seccomp(2)).  ASK and
HEAR are pipes to the agent: it is told a descriptor of this process, and says whether it could take
it.  Only if it can is the filter installed.  For a shell both are ``-``.

`install_filter` is for one thread, and for all threads and programs that it starts later.  Such a
filter cannot be removed, and a call that nobody answers fails.  `bind_answers` answers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from _signal import SIGKILL  # type: ignore[import-not-found]  # typeshed leaves it out

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1  # linux/seccomp.h
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_SECCOMP_RET_USER_NOTIF = 0x7FC00000
_SECCOMP_RET_ALLOW = 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h, of 32 bits
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4  # struct seccomp_data

_MACHINES = {"x86_64": (0xC000003E, 317, 49), "aarch64": (0xC00000B7, 277, 200)}
"""linux/audit.h's name of the architecture, and its numbers of seccomp and bind."""


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def main() -> None:
    """Die with the parent, let the agent answer for each bind, and become the program."""
    kernel = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    kernel.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL), unused, unused, unused)
    if os.getppid() != int(sys.argv[1]):
        os.kill(os.getpid(), SIGKILL)  # the parent died before the kernel knew of the wish
    if sys.argv[2] != "-":
        _let_binds_be_answered(int(sys.argv[2]), int(sys.argv[3]))
    try:
        os.execvp(sys.argv[4], sys.argv[4:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[4]} cannot be started: {error.strerror}\n")
        sys.exit(127)


def _let_binds_be_answered(ask: int, hear: int) -> None:
    if os.uname().machine in _MACHINES and _can_be_taken(ask, ask, hear):
        listener = install_filter()
        if listener >= 0:
            _can_be_taken(listener, ask, hear)
    os.close(ask)
    os.close(hear)


def _can_be_taken(descriptor: int, ask: int, hear: int) -> bool:
    """Offer a descriptor to the agent; return whether it has taken it."""
    os.write(ask, b"%d\n" % descriptor)
    return os.read(hear, 1) == b"y"


def install_filter() -> int:
    """Let the kernel ask for each bind of this thread; return the descriptor where it asks, or -1.

    It is -1 where the machine, a container, or an earlier such filter does not permit one.
    """
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return -1
    architecture, seccomp, bind = machine
    kernel = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if kernel.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), unused, unused, unused) != 0:
        return -1
    lines = (
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        _Instruction(_JUMP_IF_EQUAL, 0, 3, architecture),
        _Instruction(_LOAD, 0, 0, _NUMBER_OFFSET),
        _Instruction(_JUMP_IF_EQUAL, 0, 1, bind),
        _Instruction(_RETURN, 0, 0, _SECCOMP_RET_USER_NOTIF),
        _Instruction(_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
    )
    program = _Program(len(lines), (_Instruction * len(lines))(*lines))
    flags = ctypes.c_ulong(_SECCOMP_FILTER_FLAG_NEW_LISTENER)
    mode = ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER)
    listener: int = kernel.syscall(ctypes.c_long(seccomp), mode, flags, ctypes.byref(program))
    return listener


if __name__ == "__main__":
    main()
