"""This host in its networks: its names and addresses, and what a name means here."""

from __future__ import annotations

import socket


def own_name() -> str:
    """Return the name of this host, without its domain."""
    return socket.gethostname().partition(".")[0]


def own_names() -> frozenset[str]:
    """Return the names by which this host knows itself."""
    return frozenset({socket.gethostname(), own_name()})


def addresses_of(name: str) -> frozenset[str]:
    """Return the addresses of a host by its name, or of an address itself; none if unknown."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)


def is_own_name(name: str) -> bool:
    """Return whether a name, or an address, means this very host."""
    return any(map(is_own_address, addresses_of(name)))


def is_own_address(address: str) -> bool:
    """Return whether this host has an address: the kernel lets nobody else bind to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as asking:
            asking.bind((address, 0))
    except OSError:
        return False
    return True
