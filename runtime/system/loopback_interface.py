"""Whether this process can speak to itself by way of the loopback interface.

A network namespace begins with an interface ``lo`` that is down, and some containers leave it so.
Launchers of MPI and their ranks meet there, and would wait for each other for minutes.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from enum import Enum

_LO = b"lo"
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h
_IFF_UP = 1  # linux/if.h
_ANSWERS_WITHIN_S = 5.0


class Loopback(Enum):
    """The state of the interface."""

    WORKS = "works"
    """As far as can be seen: a process that may use no sockets is no reason to refuse a job."""
    IS_DOWN = "is down"
    HAS_NO_ADDRESS = "has no address 127.0.0.1"


def loopback_state() -> Loopback:
    """Connect to this process itself; if that fails, ask the kernel why."""
    try:
        _connect()
    except OSError as error:
        if not _is_up():
            return Loopback.IS_DOWN
        if error.errno in (errno.EADDRNOTAVAIL, errno.ENETUNREACH):
            return Loopback.HAS_NO_ADDRESS
    return Loopback.WORKS


def _connect() -> None:
    with socket.socket() as listener, socket.socket() as caller:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        caller.settimeout(_ANSWERS_WITHIN_S)
        caller.connect(listener.getsockname())


def _is_up() -> bool:
    """Return whether the interface is up; true as well if the kernel does not say."""
    question = struct.pack("16sH22x", _LO, 0)  # struct ifreq
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, question)
    except OSError as error:
        return error.errno != errno.ENODEV
    (flags,) = struct.unpack_from("H", answer, 16)
    return bool(flags & _IFF_UP)
