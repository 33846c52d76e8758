"""The float vectors that workers add up: how they lie in memory, and who maps whose.

A vector begins at a multiple of 64 bytes, so that TensorFlow can use it without a copy.

The workers of one host map each other's vectors.  The memory is a memfd: it has no name, needs
no clean-up, and lives as long as a process maps it.  A peer opens it by a *ticket*, through the
owner's entry in ``/proc``.  Process ids come back, so a token at the start of the memory tells
that it is the right one.  Memory is reserved for all vectors that may ever be needed, but a page
costs nothing before its first write.

Each worker maps the vectors of all others on its host, and two vectors for results.  The results
belong to the first rank of the host and are new for every world.  So a worker that was given up for
dead, but still runs for a moment, can only write into an old result that no worker reads.

Invariant: no worker writes into a vector that holds a root, or reads the result, before
the vote that follows the sum (`sums`).

Sums use the two results in turns.  A slow worker may read the last result while a fast one
writes the next.  Only the vote between proves that all have read the one before.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import mmap
import os
import secrets
import struct
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.system.own_process import sealed_memory

_Array = TypeVar("_Array", bound=npt.NDArray[Any])

ALIGNMENT_BYTES = 64
"""TensorFlow aborts the process when a dlpack buffer begins elsewhere (``IsAligned``)."""

_TICKET = struct.Struct("<qqqq16s")
_HEADER_BYTES = 4096
_LINE_FLOATS = 16
"""Vectors begin at multiples of 64 bytes: TensorFlow copies all others."""

_KERNEL_BYTES = 24


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of vectors over the world; whole once a vote of all ranks has followed.

    ``is_finite`` is whether this rank's slice of it holds no infinity and no NaN.  Together
    the ranks look at all of it; the vote joins their answers.
    """

    vector: FloatVector
    is_finite: bool


def aligned_vector(size: int) -> FloatVector:
    """Return an uninitialised float32 vector that begins at a multiple of 64 bytes."""
    return aligned_array((size,), np.dtype(np.float32))


def aligned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array that begins at a multiple of 64 bytes; no Python objects."""
    length = math.prod(shape) * dtype.itemsize
    raw = np.empty(length + ALIGNMENT_BYTES, np.uint8)
    # Several times a step: faster than `address_of`, for memory that may be written.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(raw.data)) % ALIGNMENT_BYTES
    found: npt.NDArray[Any] = np.ndarray(shape, dtype, raw, start)
    return found


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of the array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address


def is_finite(vector: FloatVector) -> bool:
    """Return whether every float is finite; the sum of their squares may overflow meanwhile."""
    # A finite sum has finite terms, and finite terms may overflow in it.  BLAS is the fastest.
    return math.isfinite(vector.dot(vector)) or bool(np.isfinite(vector).all())


def writable_alias(array: _Array) -> _Array:
    """Return the same memory without write protection.

    For readers that refuse protected memory, such as NumPy's ``__dlpack__`` without a
    version.
    """
    interface = array.__array_interface__ | {"data": (address_of(array), False)}
    described: Any = SimpleNamespace(__array_interface__=interface, array=array)  # kept alive
    alias: _Array = np.asarray(described)  # type: ignore[assignment]
    return alias


class SharedVectors:
    """Vectors of one size in memory that other processes can map."""

    def __init__(self, fd: int, floats: int, count: int) -> None:
        """Map the memory behind ``fd``, which stays the caller's."""
        self.floats = floats
        self.count = count
        self._fd = fd
        self._stride = -(-floats // _LINE_FLOATS) * _LINE_FLOATS
        self._map = mmap.mmap(fd, _bytes_of(floats, count))
        self._views: dict[int, FloatVector] = {}
        self._indices: dict[int, int] = {}
        self._closer: Callable[[], object] = lambda: None  # a peer has no descriptor to close

    @staticmethod
    def create(floats: int, count: int) -> SharedVectors:
        """Return ``count`` vectors of ``floats`` zeros, owned by this process."""
        fd = sealed_memory("holdfast-vectors", _bytes_of(floats, count))
        vectors = SharedVectors(fd, floats, count)
        vectors._map[:16] = secrets.token_bytes(16)
        vectors._closer = weakref.finalize(vectors, os.close, fd)
        return vectors

    @staticmethod
    def open(ticket: bytes) -> SharedVectors:
        """Map the vectors that a peer on this host has given a ticket for.

        Raises:
            OSError: the peer is gone, or its memory may not be opened.
            LookupError: the memory that was found is another process's.
        """
        pid, number, floats, count, token = _TICKET.unpack(ticket)
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != _bytes_of(floats, count) or os.pread(fd, 16, 0) != token:
                raise LookupError(f"process {pid} is not the one whose vectors were meant")
            return SharedVectors(fd, floats, count)
        finally:
            os.close(fd)

    @property
    def ticket(self) -> bytes:
        """The ticket by which a peer on this host opens the vectors; only for the owner."""
        return _TICKET.pack(os.getpid(), self._fd, self.floats, self.count, self._map[:16])

    def allocate(self) -> FloatVector:
        """Return a vector that was not handed out before.

        Raises:
            MemoryError: all vectors were handed out.
        """
        if len(self._indices) == self.count:
            raise MemoryError(f"all {self.count} shared vectors are in use")
        index = len(self._indices)
        vector = self.at(index)
        self._indices[id(vector)] = index
        return vector

    def index_of(self, vector: FloatVector) -> int:
        """Return the number of a vector that ``allocate`` has returned."""
        return self._indices[id(vector)]

    def at(self, index: int) -> FloatVector:
        """Return vector ``index``, always the same object."""
        if index not in self._views:
            start = _HEADER_BYTES + 4 * self._stride * index
            self._views[index] = np.frombuffer(self._map, np.float32, self.floats, start)
        return self._views[index]

    def give_back(self) -> None:
        """Return the memory of all vectors to the system; their contents become zeros.

        It comes back with the first write.  No peer may be reading.
        """
        self._map.madvise(mmap.MADV_REMOVE, _HEADER_BYTES)

    def close(self) -> None:
        """Allow no more openings; mapped memory stays.  Closing twice is harmless."""
        self._closer()


def _bytes_of(floats: int, count: int) -> int:
    stride = -(-floats // _LINE_FLOATS) * _LINE_FLOATS
    return _HEADER_BYTES + 4 * stride * count


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The vectors of this host's ranks for one kind of transaction."""

    hosts: tuple[int, ...]
    """The number of each rank's host, for all ranks of the world; by the first rank of each."""
    vectors: Mapping[int, SharedVectors]
    """Those of the ranks of this host, in rank order; empty if a rank is alone and maps nothing."""
    turns: Iterator[FloatVector]
    """The two results of this host in turns, for ever: also a new plan goes on with the other."""

    @property
    def is_common(self) -> bool:
        """Whether all ranks of the world map each other's vectors."""
        return len(self.vectors) == len(self.hosts)

    @staticmethod
    def alone(ranks: int, floats: int) -> HostMemory:
        """Return the memory of a rank that shares none, as if each rank were on its own host."""
        results = aligned_vector(floats), aligned_vector(floats)
        return HostMemory(tuple(range(ranks)), {}, itertools.cycle(results))


def map_peers(membership: Membership, mine: Sequence[SharedVectors]) -> list[HostMemory]:
    """Map the vectors that the members on this host offer, one for each kind of transaction.

    All members of a new world call this at the same point.  If one of them cannot map the memory of
    another on its host, none shares any: they may not look into each other's ``/proc``.
    Only the names of hosts tell who shares: memory of another host is never opened, even if
    ``/proc`` shows a process by that number.

    Raises:
        WorldBroken: a member has died; repair.
    """
    communicator, names = membership.communicator, membership.hosts
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    hosts = tuple(numbers[name] for name in names)
    is_first = hosts.index(hosts[communicator.rank]) == communicator.rank
    results = [SharedVectors.create(v.floats, 2) for v in mine] if is_first else []
    tickets = [vectors.ticket for vectors in (*mine, *results)]
    card = b"".join([_kernel(), *tickets])
    try:
        cards = membership.together(lambda: communicator.allgather_bytes(card))
        found = _map_host(cards, mine, hosts, communicator.rank)
        has_all = membership.agree_all(found is not None)
    finally:
        for vectors in results:
            vectors.close()
    if found is None or not has_all:
        return [HostMemory.alone(communicator.size, vectors.floats) for vectors in mine]
    return found


def _map_host(
    cards: Sequence[bytes], mine: Sequence[SharedVectors], hosts: tuple[int, ...], rank: int
) -> list[HostMemory] | None:
    """Return the memory of this host for each of ``mine``, or None if some cannot be mapped."""
    here = [peer for peer, host in enumerate(hosts) if host == hosts[rank]]
    if len({cards[peer][:_KERNEL_BYTES] for peer in here}) > 1:
        return None
    size = _TICKET.size
    offers = [[c[i : i + size] for i in range(_KERNEL_BYTES, len(c), size)] for c in cards]
    try:
        found = []
        for kind, own in enumerate(mine):
            shared = SharedVectors.open(offers[here[0]][len(mine) + kind])
            vectors = {
                peer: own if peer == rank else SharedVectors.open(offers[peer][kind])
                for peer in here
            }
            turns = itertools.cycle((shared.at(0), shared.at(1)))
            found.append(HostMemory(hosts, vectors, turns))
    except (OSError, LookupError):
        return None
    return found


@functools.lru_cache(maxsize=1)
def _kernel() -> bytes:
    """Return bytes that are equal only for processes that see each other in ``/proc``."""
    boot = uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
    return boot.bytes + os.stat("/proc/self/ns/pid").st_ino.to_bytes(8, "little")
