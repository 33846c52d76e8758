"""The connections of this process to peers that are lost."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from open_files import open_files

from holdfast.runtime.system.connections import (
    Endpoint,
    Strangers,
    end_connections,
    own_endpoint,
    own_sockets,
    strangers_cut_off,
)

HERE, THERE, BESIDE = "127.0.0.2", "127.0.0.3", "127.0.0.4"


class Connection:
    """A connection of this process, and the peer's end of it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be sent on it any more."""
        try:
            self.near.send(b"x")
        except BrokenPipeError:
            return True
        return False


class Net:
    """A listener of this process at each address, which stand for those of two processes."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listeners = {
            address: stack.enter_context(socket.create_server((address, 0)))
            for address in (HERE, THERE, BESIDE)
        }

    def endpoint(self, address: str) -> Endpoint:
        return Endpoint(address, (self.listeners[address].getsockname()[1],))

    def connect(self, start: str, target: str) -> tuple[socket.socket, socket.socket]:
        """Connect from one address to the listener at another; return both ends."""
        name = self.listeners[target].getsockname()
        begun = self._stack.enter_context(socket.create_connection(name, source_address=(start, 0)))
        accepted = self._stack.enter_context(self.listeners[target].accept()[0])
        return begun, accepted

    def begun_here(self, target: str) -> Connection:
        return Connection(*self.connect(HERE, target))

    def begun_there(self, start: str) -> Connection:
        far, near = self.connect(start, HERE)
        return Connection(near, far)


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack)


def test_own_ports_are_those_that_listen_at_the_address(net: Net) -> None:
    net.begun_here(THERE)
    net.begun_there(THERE)
    before = open_files()

    assert own_endpoint(HERE) == net.endpoint(HERE)
    assert own_endpoint("127.0.0.9") == Endpoint("127.0.0.9", ())
    assert open_files() == before


def test_connections_to_a_lost_host_end_whoever_has_begun_them(net: Net) -> None:
    lost = [net.begun_here(THERE), net.begun_there(THERE)]
    others = [net.begun_here(BESIDE), net.begun_there(BESIDE)]

    before = own_sockets()
    ended = end_connections(net.endpoint(HERE), [net.endpoint(THERE)], [net.endpoint(BESIDE)])

    assert len(ended) == len(lost)
    assert ended < before
    assert [one.has_ended for one in lost] == [True, True]
    assert [one.has_ended for one in others] == [False, False]


def test_peer_of_a_lost_process_on_the_same_host_stays(net: Net) -> None:
    """The kernel of that host ends what the dead one has begun."""
    begun, accepted = net.begun_here(THERE), net.begun_there(THERE)
    survivor = Endpoint(THERE, (1,))

    end_connections(net.endpoint(HERE), [net.endpoint(THERE)], [survivor])

    assert (begun.has_ended, accepted.has_ended) == (True, False)


def test_connections_of_the_script_stay(net: Net) -> None:
    """It may use a service on a host that is lost to the job alone."""
    with socket.create_server((THERE, 0)) as service:
        mine = socket.create_connection(service.getsockname(), source_address=(HERE, 0))
        peers = service.accept()[0]

        end_connections(net.endpoint(HERE), [net.endpoint(THERE)], [])

        assert not Connection(mine, peers).has_ended
        mine.close()
        peers.close()


def test_caller_who_says_less_than_a_handshake_is_cut_off_in_time(net: Net) -> None:
    silent, half, peer = (net.begun_there(THERE) for _ in range(3))
    for caller, word in ((half, b"OPAL-TCP-BTL"), (peer, bytes(24))):
        caller.far.sendall(word)
    names = ["{}:{}".format(*caller.far.getsockname()) for caller in (silent, half)]
    strangers = Strangers()

    told = [strangers.look(now) for now in (0.0, 0.9, 1.1, 4.9, 5.1)]

    assert told == [(), (), (names[1],), (), (names[0],)]
    assert [caller.has_ended for caller in (silent, half, peer)] == [True, True, False]
    assert strangers.look(9.0) == ()


def test_nobody_is_listened_to_when_all_peers_were_answered(net: Net) -> None:
    caller, strangers = net.begun_there(THERE), Strangers(peers=1)
    caller.far.sendall(bytes(24))
    strangers.look(0.0)
    strangers.look(1.0)
    assert net.begun_there(THERE)

    caller.near.sendall(bytes(8))
    caller.far.recv(8, socket.MSG_WAITALL)
    strangers.look(2.0)
    strangers.look(3.0)

    with pytest.raises(ConnectionRefusedError):
        net.begun_there(THERE)
    assert not caller.has_ended
    assert net.begun_here(THERE)


def test_whoever_calls_mpiexec_as_a_daemon_is_cut_off() -> None:
    pidfd = os.pidfd_open(os.getpid())
    strangers = Strangers("self", pidfd, peers=1)
    with socket.create_server(("", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        taken = listener.accept()[0]
        with caller, taken:
            caller.sendall(bytes(300))
            taken.sendall(bytes(8))
            assert caller.recv(8, socket.MSG_WAITALL)

            told = [strangers.look(now) for now in (0.0, 0.9, 1.1)]

            assert told == [(), (), ("{}:{}".format(*caller.getsockname()),)]
            assert caller.recv(1) == b""
        socket.create_connection(listener.getsockname()).close()
    os.close(pidfd)


def test_what_has_listened_in_the_meantime_listens_no_more_and_is_never_ready(net: Net) -> None:
    told: list[str] = []
    with strangers_cut_off(told.append):
        listener = socket.create_server((HERE, 0))
        stranger = socket.create_connection(listener.getsockname())
        taken = listener.accept()[0]
        name = listener.getsockname()
    with listener, stranger, taken:
        ready = select.poll()
        ready.register(listener, select.POLLIN)

        assert ready.poll(0) == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(name)
        assert stranger.recv(1) == b""
        assert told == ["{}:{}".format(*stranger.getsockname())]
        assert net.begun_there(THERE)  # it has listened before
        os.close(listener.detach())
