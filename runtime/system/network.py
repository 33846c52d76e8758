"""This host in its networks: its names, addresses and interfaces, and who reaches whom by TCP.

Launchers of MPI and their ranks meet on 127.0.0.1.  A network namespace begins with an interface
``lo`` that is down, and some containers leave it so: then they would wait for each other for
minutes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import starmap
from pathlib import Path

import psutil

from holdfast.runtime.system.signals import start_thread

_WORD_WITHIN_S = 3.0
"""For a connection and its first word; Linux sends a lost SYN again after one second."""

_SILENT_S = 10.0
_LARGE_BYTES, _LARGE_WITHIN_S = 1 << 15, 5.0
"""Packets of any size are in it."""

NARROW = (
    "small packets pass and large ones do not: give all interfaces on the way one MTU, as by "
    "`ip link set eth0 mtu 1400`"
)
_ANSWERS_WITHIN_S = 5.0

_INFINIBAND = 32  # ARPHRD_INFINIBAND of linux/if_arp.h
_INFINIBAND_MBITS = 32_000
"""Of four lanes since 2008 (QDR): hosts have slower Ethernet beside it."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One IPv4 address of a network interface of this host."""

    name: str
    address: str
    prefix: int
    """Bits of the address that its network has in common."""
    is_up: bool = True
    speed: int = 0
    """Megabits a second, 0 if the kernel does not know."""

    @property
    def network(self) -> IPv4Network:
        """The network that the interface is on."""
        return IPv4Interface(f"{self.address}/{self.prefix}").network

    def is_on(self, network: IPv4Network) -> bool:
        """Return whether its address belongs to a network, and it can be used."""
        return self.is_up and IPv4Address(self.address) in network

    def __str__(self) -> str:
        """Name, address and prefix, as ``ip addr`` shows them."""
        return f"{self.name} {self.address}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a host listens for others, to see who reaches it: an address on a network."""

    network: str
    """As CIDR."""
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Reached:
    """A meeting that was reached, and the address of this host that it was reached from."""

    network: str
    source: str
    is_narrow: bool = False
    """Whether only small packets have passed."""


def own_name() -> str:
    """Return the name of this host, without its domain."""
    return socket.gethostname().partition(".")[0]


def own_names() -> frozenset[str]:
    """Return the names by which this host knows itself; Slurm's name of a node may be another."""
    names = {socket.gethostname(), own_name(), os.environ.get("SLURMD_NODENAME", "")}
    return frozenset(names - {""})


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


def interfaces(kinds: Path = Path("/sys/class/net")) -> tuple[Interface, ...]:
    """Return the IPv4 addresses of this host, without those of the loopback interface."""
    states = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        state = states.get(name)
        for given in addresses:
            if given.family == socket.AF_INET and not IPv4Address(given.address).is_loopback:
                prefix = IPv4Network(f"0.0.0.0/{given.netmask or '255.255.255.255'}").prefixlen
                is_up, speed = (state.isup, state.speed) if state is not None else (False, 0)
                speed = speed or _least_speed(kinds / name / "type")
                found.append(Interface(name, given.address, prefix, is_up, speed))
    return tuple(found)


def _least_speed(kind: Path) -> int:
    """Return what an interface has at least whose driver tells no speed, 0 if that is unknown."""
    with contextlib.suppress(OSError, ValueError):
        return _INFINIBAND_MBITS if int(kind.read_text()) == _INFINIBAND else 0
    return 0


def interface_on(network: IPv4Network) -> Interface | None:
    """Return this host's first interface on a network, None if it has none."""
    return next((one for one in interfaces() if one.is_on(network)), None)


class MeetingPlace:
    """Listens at addresses of this host while it is open, and says its word to all who come.

    A caller then sends packets of any size, and gets as many.  It is a context manager.
    """

    def __init__(self, places: Iterable[tuple[IPv4Network, str]], word: str) -> None:
        self._word = word.encode()
        self._stack = contextlib.ExitStack()
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._wake, awake = socket.socketpair()
        for end in (self._wake, awake):
            self._stack.enter_context(end)
        self._selector.register(awake, selectors.EVENT_READ)
        self.meetings = tuple(filter(None, starmap(self._listen, places)))
        """Where it listens; an address where nobody can is left out."""
        self._thread = threading.Thread(target=self._serve, name="meetings", daemon=True)

    def __enter__(self) -> MeetingPlace:
        """Serve from now on; raises ``OSError`` if there is no thread to spare."""
        start_thread(self._thread)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        self._wake.send(b".")
        self._thread.join()
        self._stack.close()

    def _listen(self, network: IPv4Network, address: str) -> Meeting | None:
        listener = self._stack.enter_context(socket.socket())
        try:
            listener.bind((address, 0))
            listener.listen()
        except OSError:
            return None
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, listener)
        return Meeting(str(network), address, listener.getsockname()[1])

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                with contextlib.suppress(OSError):
                    caller, _ = key.data.accept()
                    start_thread(threading.Thread(target=self._answer, args=(caller,), daemon=True))

    def _answer(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            caller.settimeout(_SILENT_S)
            caller.sendall(self._word)
            caller.sendall(_received(caller, _LARGE_BYTES))


def reach(meeting: Meeting, own: Iterable[Interface], word: str) -> Reached | None:
    """Return how this host reaches a meeting of another one, None if it does not."""
    with contextlib.suppress(OSError):
        return _come(meeting, own, word)
    return None


def fault_of(meeting: Meeting, word: str) -> str:
    """Return why this host does not reach a meeting of another one, in two tries; "" if it does."""
    fault = ""
    for _ in range(2):
        try:
            if not _come(meeting, interfaces(), word).is_narrow:
                return ""
            fault = NARROW
        except OSError as error:
            fault = error.strerror or str(error)
    return fault


def _come(meeting: Meeting, own: Iterable[Interface], word: str) -> Reached:
    """Come to a meeting of another host, and send it packets of any size.

    Raises ``OSError`` if nobody listens there, or another program does.

    If this host has an address on the network of the meeting, the connection begins there.  An
    address that is its own as well, such as that of a bridge for containers, reaches nobody.
    """
    network = IPv4Network(meeting.network)
    if is_own_address(meeting.address):
        raise ConnectionError(f"{meeting.address} is an address of this host, too")
    source = next((found.address for found in own if found.is_on(network)), "")
    with socket.create_connection(
        (meeting.address, meeting.port), _WORD_WITHIN_S, (source, 0) if source else None
    ) as connection:
        if _received(connection, len(word)) != word.encode():
            raise ConnectionError(f"another program listens at {meeting.address}")
        here = str(connection.getsockname()[0])
        return Reached(meeting.network, here, is_narrow=not _carries_any_size(connection))


def _carries_any_size(connection: socket.socket) -> bool:
    connection.settimeout(_LARGE_WITHIN_S)
    try:
        connection.sendall(bytes(_LARGE_BYTES))
        return len(_received(connection, _LARGE_BYTES)) == _LARGE_BYTES
    except TimeoutError:
        return False


def _received(connection: socket.socket, size: int) -> bytes:
    """Return so many bytes, fewer if the peer has hung up."""
    found = b""
    while len(found) < size and (piece := connection.recv(size - len(found))):
        found += piece
    return found


class Loopback(Enum):
    """The state of the interface."""

    WORKS = "works"
    """As far as can be seen: a process that may use no sockets is no reason to refuse a job."""
    IS_DOWN = "is down"
    HAS_NO_ADDRESS = "has no address 127.0.0.1"


def loopback_state() -> Loopback:
    """Connect to this process itself; if that fails, ask the kernel why."""
    try:
        _connect_to_self()
    except OSError as error:
        if not _is_up():
            return Loopback.IS_DOWN
        if error.errno in (errno.EADDRNOTAVAIL, errno.ENETUNREACH):
            return Loopback.HAS_NO_ADDRESS
    return Loopback.WORKS


def _connect_to_self() -> None:
    with socket.socket() as listener, socket.socket() as caller:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        caller.settimeout(_ANSWERS_WITHIN_S)
        caller.connect(listener.getsockname())


def _is_up() -> bool:
    """Return whether the interface is up; true as well if the kernel does not say."""
    try:
        found = psutil.net_if_stats().get("lo")
    except OSError:
        return True
    return found is not None and found.isup
