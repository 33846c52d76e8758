"""The agent's answers to the binds of mpiexec: all interfaces become the loopback interface.

If the job has other hosts, mpiexec also binds to its address on the network between them.  That
bind goes on as it is: PMIx of the workers there connects to it.

The kernel stops a process that has the filter of `become_mpiexec` in each ``bind``, and asks here
(seccomp_unotify(2)).  A socket that would listen on the network is bound to the same port of the
loopback interface instead.  This process does so, on a copy of the descriptor.  Every other bind
goes on as it is.

The invariant: *each question is answered*, if need be by letting the call go on.  A process
whose question stays open would hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import struct
import threading
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

_PIDFD_GETFD = 438  # the number of the system call on all architectures
_NOTIF_RECV = 0xC0502100  # linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif)
_NOTIF_SEND = 0xC0182101  # _IOWR('!', 1, struct seccomp_notif_resp)
_QUESTION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_LONGEST_ADDRESS = 128  # struct sockaddr_storage

_FAMILY = struct.Struct("=H")
_AF_INET, _AF_INET6 = 2, 10
_LOOPBACK = {
    _AF_INET: (4, bytes((127, 0, 0, 1))),
    _AF_INET6: (8, bytes(15) + b"\x01"),
}
"""By family: where its address lies in a sockaddr, and the address of the loopback interface."""


@dataclass(frozen=True, slots=True)
class Pipes:
    """The agent's ends of the pipes to a process that will become mpiexec."""

    offers: int
    """Numbers of descriptors of that process come from here, one a line."""
    answers: int
    """``y`` goes here if the descriptor could be taken, else ``n``."""

    def close(self) -> None:
        """Close both."""
        os.close(self.offers)
        os.close(self.answers)


def serve_in_background(pidfd: int, pipes: Pipes, network: IPv4Network | None = None) -> None:
    """Answer the binds of a process and its children in a thread, until all have ended.

    They may bind to the loopback interface, and to addresses on ``network``.  The thread owns
    ``pipes``, and a copy of ``pidfd``.
    """
    copy = os.dup(pidfd)
    name = "holdfast-loopback"
    threading.Thread(target=_serve, args=(copy, pipes, network), name=name, daemon=True).start()


def kept_to_loopback(address: bytes, network: IPv4Network | None = None) -> bytes | None:
    """Return a ``sockaddr`` of the loopback interface in place of another, else None.

    One on ``network`` stays.
    """
    if len(address) < _FAMILY.size:
        return None
    place, loopback = _LOOPBACK.get(_FAMILY.unpack_from(address)[0], (0, b""))
    stop = place + len(loopback)
    if not loopback or len(address) < stop or _is_loopback(address[place:stop]):
        return None
    if network is not None and len(loopback) == 4:
        asked = IPv4Address(address[place:stop])
        if asked in network and not asked.is_unspecified:
            return None
    return address[:place] + loopback + address[stop:]


def _is_loopback(address: bytes) -> bool:
    return address[0] == 127 if len(address) == 4 else address == _LOOPBACK[_AF_INET6][1]


def _serve(pidfd: int, pipes: Pipes, network: IPv4Network | None) -> None:
    listener = -1
    try:
        for index in range(2):  # first any descriptor, as a trial, and then the listener
            taken = _take(pidfd, pipes)
            if index == 0 and taken >= 0:
                os.close(taken)
            else:
                listener = taken
            os.write(pipes.answers, b"n" if taken < 0 else b"y")
            if taken < 0:
                break
    except OSError:
        pass  # the process has ended, or goes on without the filter
    finally:
        pipes.close()
        os.close(pidfd)
    if listener >= 0:
        _answer_all(listener, network)
        os.close(listener)


def _take(pidfd: int, pipes: Pipes) -> int:
    """Return a copy of the next descriptor that is offered, -1 if it cannot be had."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(pipes.offers, 16)
        if not data:
            raise OSError(errno.EPIPE, "the process offers no descriptor")
        line += data
    return _copy_of(pidfd, int(line))


def _copy_of(pidfd: int, descriptor: int) -> int:
    kernel = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(_PIDFD_GETFD)
    copy: int = kernel.syscall(number, ctypes.c_int(pidfd), ctypes.c_int(descriptor), 0)
    return copy


def _answer_all(listener: int, network: IPv4Network | None) -> None:
    """Answer until the last process with the filter has ended."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        for _, events in waiting.poll():
            if not events & select.POLLIN:
                return
        question = bytearray(_QUESTION.size)
        try:
            fcntl.ioctl(listener, _NOTIF_RECV, question)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue  # the caller was killed meanwhile
            return
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _NOTIF_SEND, _answer(question, network))


def _answer(question: bytearray, network: IPv4Network | None) -> bytes:
    token, caller, _, _, _, _, descriptor, pointer, length, *_ = _QUESTION.unpack(question)
    try:
        with Path(f"/proc/{caller}/mem").open("rb", buffering=0) as memory:
            memory.seek(pointer)
            address = memory.read(min(length, _LONGEST_ADDRESS))
        kept = kept_to_loopback(address, network)
        result = None if kept is None else _bind(caller, descriptor, kept)
    except (OSError, ValueError):
        result = None
    if result is None:
        return _ANSWER.pack(token, 0, 0, _GO_ON)
    return _ANSWER.pack(token, 0, -result, 0)


def _bind(caller: int, descriptor: int, address: bytes) -> int | None:
    """Bind the caller's socket to ``address``; None if it should go on by itself.

    Returns 0 or an error number.
    """
    pidfd = os.pidfd_open(_process_of(caller))
    try:
        copy = _copy_of(pidfd, descriptor)
    finally:
        os.close(pidfd)
    if copy < 0:
        return None
    try:
        kernel = ctypes.CDLL(None, use_errno=True)
        failed = kernel.bind(copy, address, len(address))
        return ctypes.get_errno() if failed else 0
    finally:
        os.close(copy)


def _process_of(thread: int) -> int:
    for line in Path(f"/proc/{thread}/status").read_text().splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    return thread
