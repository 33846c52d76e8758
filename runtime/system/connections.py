"""The TCP sockets of this process, those of libraries too: where it listens, and its peers.

MPI keeps its connections to itself.  When a host is lost, what its processes have sent may still
arrive, as soon as the network is whole again.  So a process ends its connections to lost peers.

Theory of strangers.  MPI takes the first words of a caller by calls that wait, inside its progress.
A caller who says less than a handshake, and stays, stops a rank for as long; a silent one stops
mpiexec.  A port scan does so.  A peer says its handshake at once, in one piece.  So a connection to
where MPI listens that has brought less than that is ended after a moment.  When each rank has a
connection to each other one, a rank listens no more.  mpiexec also listens for daemons on other
hosts.  There are none, so whoever calls there is a stranger.  That socket stays: mpiexec would try
for ever to accept callers at one that was shut down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from holdfast.runtime.system.signals import start_thread

_ANY, _ANY6 = "0.0.0.0", "::"
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_HANDSHAKE_BYTES = 24
"""Of a rank of Open MPI; a client of PMIx says more."""
_ANSWER_BYTES = 8
"""Of PMIx to a client that it takes; the kernel may count one for the connection itself."""
_PIDFD_GETFD = 438  # the number of the system call on all architectures
_TCP_INFO = struct.Struct("=120xQQ")  # linux/tcp.h, from tcpi_bytes_acked to tcpi_bytes_received
_LOOK_S, _HALF_SAID_S, _SILENT_S = 0.25, 1.0, 5.0
"""A loaded host may take a while from a connection to the first word of a client of PMIx."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process listens: an address of its host, and its ports there."""

    address: str
    ports: tuple[int, ...]


def own_endpoint(address: str) -> Endpoint:
    """Return the ports of this process at an address of its host."""
    ports = [
        one.getsockname()[1]
        for _, one in _sockets()
        if _listens(one) and one.getsockname()[0] in (address, _ANY)
    ]
    return Endpoint(address, tuple(sorted(ports)))


def end_connections(
    own: Endpoint, lost: Collection[Endpoint], left: Collection[Endpoint]
) -> frozenset[int]:
    """End the connections between this process and lost ones; return the inodes of the sockets.

    Which side has begun a connection is nobody's business.  A lost process that has begun one is
    known by its address alone, so such a connection is ended when nobody is left there.  Its own
    kernel ends it otherwise.  Connections that the script has made for itself stay.
    """
    theirs = {(peer.address, port) for peer in lost for port in peer.ports}
    lost_addresses = {peer.address for peer in lost} - {peer.address for peer in (own, *left)}
    ended = set()
    for _, one in _sockets():
        with contextlib.suppress(OSError):
            peer = one.getpeername()[:2]
            is_from_there = peer[0] in lost_addresses and one.getsockname()[1] in own.ports
            if peer in theirs or is_from_there:
                one.shutdown(socket.SHUT_RDWR)
                ended.add(os.fstat(one.fileno()).st_ino)
    return frozenset(ended)


def own_sockets() -> frozenset[int]:
    """Return the inodes of the TCP sockets of this process."""
    return frozenset(os.fstat(one.fileno()).st_ino for _, one in _sockets())


class Strangers:
    """Ends the connections of strangers to where MPI listens in a process."""

    def __init__(self, process: str = "self", pidfd: int = -1, peers: float = float("inf")) -> None:
        """Take a process, by its descriptor if it is another one, which shall have so many peers.

        When it has answered all of them, it listens for them no more.
        """
        self._process = process, pidfd
        self._peers = peers
        self._answered: dict[int, int] = {}
        """How many callers were answered at each port where MPI listens."""
        self._for_daemons = set[int]()
        """Those ports of mpiexec, which are on all interfaces."""
        self._since: dict[int, float] = {}

    def look(
        self, now: float, *, silent_s: float = _SILENT_S, others: Collection[int] = ()
    ) -> tuple[str, ...]:
        """End what was half said for a second, or silent for so long; return who it was.

        Sockets that listen are MPI's, but for ``others`` by their inodes.
        """
        answered, since, ended = dict.fromkeys(self._answered, 0), dict[int, float](), []
        for _, one in _sockets(*self._process):
            inode, (address, port) = os.fstat(one.fileno()).st_ino, one.getsockname()[:2]
            if inode not in others and _listens(one):
                answered.setdefault(port, 0)
                if self._process[1] >= 0 and address in (_ANY, _ANY6):
                    self._for_daemons.add(port)
                elif self._answered.get(port, 0) >= self._peers:
                    one.shutdown(socket.SHUT_RDWR)
            elif port in answered:
                heard, said = _bytes_of(one)
                answered[port] += heard >= _ANSWER_BYTES
                if said < _HANDSHAKE_BYTES or port in self._for_daemons:
                    since[inode] = self._since.get(inode, now)
                    if now - since[inode] >= (_HALF_SAID_S if said else silent_s):
                        with contextlib.suppress(OSError):
                            ended.append("{}:{}".format(*one.getpeername()))
                            one.shutdown(socket.SHUT_RDWR)
                            since[inode] = float("inf")  # until MPI closes it
        self._answered, self._since = answered, since
        return tuple(ended)


def stranger(caller: str, whom: str) -> str:
    """Say who was cut off, and from whom."""
    return (
        f"cut off a connection from {caller} to {whom}: it does not speak as MPI does, and would "
        "stop the job; keep port scanners and others off the job's network"
    )


@contextlib.contextmanager
def strangers_cut_off(tell: Callable[[str], None]) -> Iterator[None]:
    """Cut strangers off while MPI connects this process to its peers; it listens no more then.

    In the body the interpreter is free now and then.  Who was cut off is told from a thread.
    """
    before, strangers, is_over = own_sockets(), Strangers(), threading.Event()

    def look(now: float, silent_s: float = float("inf")) -> None:
        for caller in strangers.look(now, silent_s=silent_s, others=before):
            tell(caller)

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            look(time.monotonic())

    thread = threading.Thread(target=watch, name="holdfast-strangers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    look(time.monotonic())
    _stop_listening(before)
    look(float("inf"), _SILENT_S)


def watch_strangers(pid: int, peers: int, tell: Callable[[str], None]) -> None:
    """Cut strangers off from a child of this process until that ends, from a thread."""
    pidfd = os.pidfd_open(pid)
    strangers = Strangers(str(pid), pidfd, peers)

    def watch() -> None:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        while not ended.poll(1000 * _LOOK_S):
            with contextlib.suppress(OSError):  # it has just ended
                for caller in strangers.look(time.monotonic()):
                    tell(caller)
        os.close(pidfd)

    start_thread(threading.Thread(target=watch, name="holdfast-strangers", daemon=True))


def _stop_listening(others: Collection[int]) -> None:
    """Put something that is never ready in the place of each socket that listens.

    MPI's loop of events goes on to watch the descriptor.  A closed one would be given to another
    file, and one that was shut down would always be ready.
    """
    nothing = os.eventfd(0)
    for descriptor, one in _sockets():
        if _listens(one) and os.fstat(one.fileno()).st_ino not in others:
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _bytes_of(one: socket.socket) -> tuple[int, int]:
    """Return how many bytes a peer has taken, and how many it has said."""
    told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    found: tuple[int, int] = _TCP_INFO.unpack(told)
    return found


def _copy_of(pidfd: int, descriptor: int) -> int:
    """Return a copy of a descriptor of another process, -1 if it cannot be had."""
    kernel = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(_PIDFD_GETFD)
    copy: int = kernel.syscall(number, ctypes.c_int(pidfd), ctypes.c_int(descriptor), 0)
    return copy


def _sockets(process: str = "self", pidfd: int = -1) -> Iterator[tuple[int, socket.socket]]:
    """Give each TCP socket of a process, and its descriptor, as a copy that is closed after it."""
    for name in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/{process}/fd/{name}").startswith("socket:"):
                continue
            copy = os.dup(int(name)) if pidfd < 0 else _copy_of(pidfd, int(name))
            if copy < 0:
                continue  # it is gone, or may not be had
            with socket.socket(fileno=copy) as one:
                if one.family in _FAMILIES and one.type == socket.SOCK_STREAM:
                    yield int(name), one
