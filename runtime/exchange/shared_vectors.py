"""Float vectors that the other workers of the host can read where they are.

The memory is a memfd: it has no name, needs no clean-up, and lives as long as a process
maps it.  A peer opens it by a *ticket*, through the owner's entry in ``/proc``.  Process
ids come back, so a token at the start of the memory tells that it is the right one.

Memory is reserved for all vectors that may ever be needed, but a page costs nothing before
its first write.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import weakref
from collections.abc import Callable

import numpy as np

from holdfast.recovery.partial import FloatVector
from holdfast.runtime.system.sealed_memory import sealed_memory

_TICKET = struct.Struct("<qqqq16s")
_HEADER_BYTES = 4096
_LINE_FLOATS = 16
"""Vectors begin at multiples of 64 bytes: TensorFlow copies all others."""


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
        self._closer: Callable[[], object] = _nothing

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


def _nothing() -> None:
    """Do nothing: a peer has no descriptor to close."""


def _bytes_of(floats: int, count: int) -> int:
    stride = -(-floats // _LINE_FLOATS) * _LINE_FLOATS
    return _HEADER_BYTES + 4 * stride * count
