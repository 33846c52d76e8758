"""The TCP sockets of this process, those of libraries too: where it listens, and its peers.

MPI keeps its connections to itself.  When a host is lost, what its processes have sent may still
arrive, as soon as the network is whole again.  So a process ends its connections to lost peers.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_ANY = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a process listens: an address of its host, and its ports there."""

    address: str
    ports: tuple[int, ...]


def own_endpoint(address: str) -> Endpoint:
    """Return the ports of this process at an address of its host."""
    ports = [
        one.getsockname()[1]
        for one in _own_sockets()
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        and one.getsockname()[0] in (address, _ANY)  # any: where binds cannot be answered
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
    for one in _own_sockets():
        with contextlib.suppress(OSError):
            peer = one.getpeername()[:2]
            is_from_there = peer[0] in lost_addresses and one.getsockname()[1] in own.ports
            if peer in theirs or is_from_there:
                one.shutdown(socket.SHUT_RDWR)
                ended.add(os.fstat(one.fileno()).st_ino)
    return frozenset(ended)


def own_sockets() -> frozenset[int]:
    """Return the inodes of the TCP sockets of IPv4 of this process."""
    return frozenset(os.fstat(one.fileno()).st_ino for one in _own_sockets())


def _own_sockets() -> Iterator[socket.socket]:
    """Give each TCP socket of IPv4 of this process, as a copy that is closed after it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family is socket.AF_INET and one.type == socket.SOCK_STREAM:
                    yield one
