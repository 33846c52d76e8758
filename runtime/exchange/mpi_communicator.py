"""The one file that imports mpi4py: collectives that either succeed or break the world.

Theory.  Under ULFM a death surfaces as an exception of any call that a survivor makes, on
some survivors and not on others.  The error class does not help: 75, 77 and 16 all occur.
So this file knows one failure, ``WorldBroken``, and keeps four rules that make it safe to
go on after it (MPI 5.0 ULFM chapter; measured on Open MPI 5.0.9):

1. The first error of an exchange revokes the communicator: otherwise some
   requests of some survivors never end.
2. Every request is waited for by itself, to its own end, before the exchange is
   left.  ``Waitall`` frees requests that are still active.
3. Only ``agree`` decides: it returns the same answer on all survivors or raises
   on all of them.
4. The success of a collective counts only if no failure is known after it.  If a member
   dies or revokes within a small ``Allgatherv``, Open MPI 5.0.9 (its algorithms "linear"
   and "sparbit") returns success with data missing.  The result of
   ``allgather_unchecked`` counts only after a vote.

5. What a broken exchange was to fill is never used again, nor given back.  Over TCP a dead
   peer still writes: its kernel delivers what it had sent as soon as the network is whole
   again, and MPI puts that where the receive was, although the request has long ended.
   So this file keeps such arrays for ever, a few for each death, and ends the connections
   to lost peers.  A caller makes new arrays for the next try.
6. Nor are its requests used again.  Parts of a long message name their request by its address,
   so a late one would reach the request that has taken its place.  And a send that has failed
   halfway keeps the rest of its plan: the next send in its place then waits for ever on the
   connection to the dead.  MPI takes first what was freed last.  So this file takes requests
   right after the break, and once more when the connections to the lost are closed, for some are
   freed only then.  It never uses and never frees them.

If MPI refuses a collective because of its arguments, that is a mistake of holdfast, not a
death.  The exception passes through unchanged, and the job is not relaunched for it.

All MPI calls come from one thread at a time (``serialized``): with ``multiple``
the TCP transport of several hosts can deadlock in revoke.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import NoReturn

import mpi4py
import numpy as np

from holdfast.runtime.exchange.membership import Buffer, WorldBroken
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.connections import (
    Endpoint,
    end_connections,
    own_endpoint,
    own_sockets,
    strangers_cut_off,
)
from holdfast.runtime.system.network import Interface, interface_on
from holdfast.runtime.system.own_process import home_for_mpi

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
mpi4py.rc.thread_level = "serialized"

_INSIDE_A_HOST = frozenset({"", "self", "sm"})
_TRANSPORTS, _TCP_INTERFACES = "OMPI_MCA_btl", "OMPI_MCA_btl_tcp_if_include"
LARGEST_BROADCAST = 1 << 30
"""Bytes of one message; Open MPI 5.0 counts in 32 bits and refuses 2 GiB."""

from mpi4py import MPI  # noqa: E402  (rc must be set first)

_MISTAKES = frozenset({MPI.ERR_ARG, MPI.ERR_BUFFER, MPI.ERR_COUNT, MPI.ERR_TYPE})


_QUARANTINE: list[Buffer] = []
"""Arrays that a message of a broken exchange may still be written to."""
_RETIRED: list[MPI.Request] = []
"""Requests in the places of those that a broken exchange has freed."""
_MANY = 1024
"""More requests than a collective uses at a time, but for one with each rank."""
_CLOSED_WITHIN_S = 1.0
_MEETING_TAG = 1


class MpiCommunicator:
    """ULFM operations of one MPI communicator.

    With ``shrinkable=False`` the MPI library need not have ULFM: votes are plain
    allreduces, and a broken world cannot be repaired in place.
    """

    def __init__(self, comm: MPI.Comm, *, shrinkable: bool = True) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = comm
        self._shrinkable = shrinkable
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._unchecked: Buffer | None = None
        self._endpoints: tuple[Endpoint, ...] = ()

    def meet(self, address: str) -> None:
        """Connect to all members, tell them where this one listens, and learn where they do.

        One of each two begins the connection: no other one is made later.  If a member dies
        meanwhile, some know nothing: then no connection is ended later.
        """
        card = encode(own_endpoint(address))
        with contextlib.suppress(WorldBroken):
            with self.flight() as flight:
                for peer in range(self.size):
                    if peer != self.rank:
                        say = flight.send if peer > self.rank else flight.receive
                        say(np.empty(0, np.uint8), peer, _MEETING_TAG)
            self._endpoints = tuple(decode(Endpoint, one) for one in self.allgather_bytes(card))

    def flight(self) -> _MpiFlight:
        return _MpiFlight(self._comm, self.revoke)

    def allgather_unchecked(self, mine: Buffer, everyones: Buffer) -> None:
        # Without the look for deaths that makes its success count.
        self._unchecked = everyones
        self._call(everyones, self._comm.Allgather, mine, everyones)

    def allgather_bytes(self, payload: bytes) -> list[bytes]:
        lengths = np.empty(self.size, np.int64)
        length = np.array([len(payload)], np.int64)
        self._collective(lengths, self._comm.Allgather, length, lengths)
        joined = np.empty(int(lengths.sum()), np.uint8)
        mine = np.frombuffer(payload, np.uint8)
        self._collective(joined, self._comm.Allgatherv, mine, [joined, lengths.tolist()])
        stops = np.cumsum(lengths)
        return [
            joined[stop - length : stop].tobytes()
            for stop, length in zip(stops, lengths, strict=True)
        ]

    def broadcast(self, array: Buffer, source: int) -> None:
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, LARGEST_BROADCAST):
            piece = flat[start : start + LARGEST_BROADCAST]
            self._collective(piece, self._comm.Bcast, piece, source)

    def agree(self, flags: int) -> int:
        """Return the bitwise and of all ranks' flags, the same on every survivor.

        Raises:
            WorldBroken: a member is dead; raised on all survivors alike, so it is
                a uniform "no" (facts of ``MPIX_Comm_agree`` with an
                unacknowledged failure).
        """
        try:
            if self._shrinkable:
                return int(self._comm.Agree(flags))
            return int(self._comm.allreduce(flags, MPI.BAND))
        except MPI.Exception as error:
            raise WorldBroken(str(error)) from error

    def revoke(self) -> None:
        if self._shrinkable:
            self._comm.Revoke()

    def shrink(self) -> MpiCommunicator:
        _keep(self._unchecked)  # its success was never proved
        try:
            survivors = MpiCommunicator(self._comm.Shrink())
        except MPI.Exception as error:
            raise WorldBroken(str(error)) from error
        if self._endpoints:
            self._part_from_the_lost(survivors)
        return survivors

    def _part_from_the_lost(self, survivors: MpiCommunicator) -> None:
        """End the connections to those that are no survivors."""
        group, before = survivors._comm.Get_group(), self._comm.Get_group()
        left = group.Translate_ranks(range(survivors.size), before)
        group.Free()
        before.Free()
        survivors._endpoints = tuple(self._endpoints[rank] for rank in left)
        lost = set(range(self.size)) - set(left)
        ended = end_connections(
            self._endpoints[self.rank],
            [self._endpoints[rank] for rank in lost],
            survivors._endpoints,
        )
        deadline = time.monotonic() + _CLOSED_WITHIN_S
        while ended & own_sockets() and time.monotonic() < deadline:
            survivors._comm.Iprobe()  # MPI closes them in its progress
        _retire_requests(_MANY + self.size)

    def leave(self) -> None:
        """Return when every survivor has called this.

        Without it the first worker to exit would look like a failure to the
        others.  ``MPI_Finalize`` may hang after failures.  Without shrinking there were none,
        and launchers without ULFM want it: they kill a launch whose first rank is gone.
        """
        if not self._shrinkable:
            self._collective(None, self._comm.Barrier)
            MPI.Finalize()
            return
        for _ in range(self.size + 1):  # each death can spoil one agreement
            try:
                self._comm.Agree(1)
            except MPI.Exception:
                self._comm.Ack_failed()
            else:
                return

    def hide_segments(self) -> None:
        """Remove the names of MPICH's shared memory, which all ranks have mapped by now.

        MPICH itself removes them at its end.  After a SIGKILL there is none.
        """
        self._collective(None, self._comm.Barrier)
        for path in Path("/dev/shm").glob("mpich_shm_*"):
            if str(path) in Path("/proc/self/maps").read_text():
                path.unlink(missing_ok=True)

    def _call(self, filled: Buffer | None, call: Callable[..., object], *arguments: object) -> None:
        """Make a call that fills an array; keep the array if the call fails."""
        try:
            call(*arguments)
        except MPI.Exception as error:
            if error.Get_error_class() in _MISTAKES:
                raise
            self._break_off(filled)
            raise WorldBroken(str(error)) from error

    def _collective(
        self, filled: Buffer | None, call: Callable[..., object], *arguments: object
    ) -> None:
        self._call(filled, call, *arguments)
        if self._shrinkable and self._is_broken():
            self._break_off(filled)
            raise WorldBroken("a member died, or revoked the world, during the exchange")

    def _break_off(self, filled: Buffer | None) -> None:
        """Keep what a failed collective has touched, and end it on all ranks."""
        _keep(filled)
        _retire_requests(_MANY + self.size)
        self.revoke()

    def _is_broken(self) -> bool:
        """Return whether this rank knows of a death or a revoke; takes about a microsecond."""
        if self._comm.Is_revoked():
            return True
        failed = self._comm.Get_failed()
        count = failed.Get_size()
        failed.Free()
        return bool(count)


class _MpiFlight:
    """Requests of one exchange, each waited for by itself."""

    def __init__(self, comm: MPI.Comm, revoke: Callable[[], None]) -> None:
        self._isend, self._irecv = comm.Isend, comm.Irecv
        self._revoke = revoke
        self._requests: list[MPI.Request | None] = []
        self._filled: list[Buffer] = []
        self._broken: MPI.Exception | None = None

    def __enter__(self) -> _MpiFlight:
        return self

    def send(self, array: Buffer, peer: int, tag: int) -> int:
        try:
            self._requests.append(self._isend(array, peer, tag))
        except MPI.Exception as error:
            self._fail(error)
        return len(self._requests) - 1

    def receive(self, array: Buffer, peer: int, tag: int) -> int:
        try:
            self._filled.append(array)
            self._requests.append(self._irecv(array, peer, tag))
        except MPI.Exception as error:
            self._fail(error)
        return len(self._requests) - 1

    def wait(self, ticket: int) -> None:
        """Wait for one message; raise ``WorldBroken`` at the first error of the flight."""
        request, self._requests[ticket] = self._requests[ticket], None
        try:
            if request is not None:
                request.Wait()
        except MPI.Exception as error:
            self._fail(error)
        if self._broken is not None:
            raise WorldBroken(str(self._broken)) from self._broken

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for every request to its own end, then raise if any of them failed."""
        if error is not None and self._broken is None:
            self._revoke()  # an error on this rank must not leave the peers waiting
        for request in self._requests:
            try:
                if request is not None:
                    request.Wait()
            except MPI.Exception as failure:
                self._note(failure)
        if error is not None or self._broken is not None:
            for array in self._filled:
                _keep(array)
            _retire_requests(len(self._requests))
        if error is None and self._broken is not None:
            raise WorldBroken(str(self._broken)) from self._broken

    def _fail(self, error: MPI.Exception) -> NoReturn:
        self._note(error)
        raise WorldBroken(str(error)) from error

    def _note(self, error: MPI.Exception) -> None:
        """Revoke at the first error of the flight: without it some requests never end."""
        if self._broken is None:
            self._broken = error
            self._revoke()


def _keep(array: Buffer | None) -> None:
    """Keep the memory of an array until this process ends, unless all peers are on this host.

    Inside a host it is the receiver that copies, so nothing comes late.
    """
    if array is not None and not _transports() <= _INSIDE_A_HOST:
        _QUARANTINE.append(array)


def _retire_requests(count: int) -> None:
    """Take the sends and receives that MPI would use next, ``count`` of each, for ever."""
    nothing = np.empty(0, np.uint8)
    for _ in range(count):
        _RETIRED.append(MPI.COMM_SELF.Send_init(nothing, 0))
        _RETIRED.append(MPI.COMM_SELF.Recv_init(nothing, 0))


def _transports() -> set[str]:
    """Return MPI's transports between two processes, as mpiexec tells them to its ranks."""
    return set(os.environ.get(_TRANSPORTS, "").split(","))


def join_world(
    *, shrinkable: bool, tell: Callable[[str], None] = lambda _: None
) -> MpiCommunicator:
    """Initialise MPI and return the communicator of all workers of the launch.

    Blocks until every worker of the launch has called it.  A death before or
    inside it leaves the others waiting: the head ends such a launch.  A thread may ``tell``
    which strangers have connected meanwhile.
    """
    if MPI.Is_initialized():
        return _world(shrinkable=shrinkable)
    with _with_a_home():
        interface = _interface_between_hosts()
        if interface is None:
            MPI.Init_thread(MPI.THREAD_SERIALIZED)
            return _world(shrinkable=shrinkable)
        os.environ[_TCP_INTERFACES] = interface.name
        with strangers_cut_off(tell):
            _initialise()
            world = _world(shrinkable=shrinkable)
            world.meet(interface.address)
        return world


def _world(*, shrinkable: bool) -> MpiCommunicator:
    world = MpiCommunicator(MPI.COMM_WORLD, shrinkable=shrinkable)
    if not shrinkable:
        world.hide_segments()
    return world


def _interface_between_hosts() -> Interface | None:
    """Return the interface on the network between the job's hosts, None if it has but one.

    mpiexec names the network to its ranks.  Peers come to each address that a rank tells.  So it
    tells one, even if the host has two on the network: each pair of ranks has one connection.
    """
    if "tcp" not in _transports():
        return None
    try:
        return interface_on(IPv4Network(os.environ.get(_TCP_INTERFACES, "")))
    except ValueError:
        return None  # the user's own choice of interfaces by their names


def _initialise() -> None:
    """Initialise MPI as ``MPI.Init_thread`` does; that would keep the interpreter meanwhile."""
    files = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    library = ctypes.CDLL(next(file for file in files if Path(file).name.startswith("libmpi.so")))
    code = library.MPI_Init_thread(None, None, MPI.THREAD_SERIALIZED, ctypes.byref(ctypes.c_int()))
    if code:
        raise RuntimeError(f"MPI_Init_thread failed with code {code}")
    MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)  # as mpi4py does


@contextlib.contextmanager
def _with_a_home() -> Iterator[None]:
    """Let MPI begin also where there is none; the script finds its environment as it was."""
    before = dict(os.environ)
    os.environ.update(home_for_mpi(before, tempfile.gettempdir()))
    yield
    if "HOME" not in before:
        os.environ.pop("HOME", None)
