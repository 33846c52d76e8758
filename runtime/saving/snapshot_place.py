"""The memory of a worker's snapshots in one world: its own shard, and second copies of others.

Each shard has memory of its own, laid out once.  Second copies are optional: a worker
without room for them holds none.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.format.digest import DigestKind
from holdfast.checkpoint.format.layout import ShardLayout
from holdfast.checkpoint.format.tensor import Tensors
from holdfast.checkpoint.store.image import ShardImage
from holdfast.runtime.saving.snapshot import SavePlan
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.system.sealed_memory import sealed_memory
from holdfast.runtime.watch.host_limits import HostLimits

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14
_BUFFERS = 2
_AT_ONCE_BYTES = 32 * 2**20
"""This takes 13 ms and holds the interpreter's lock, which heartbeats need."""


class SnapshotMemory:
    """Two buffers of one size in memory that has no name."""

    def __init__(self, size: int) -> None:
        """Take the memory now.

        Raises:
            OSError: there is not enough memory.
        """
        self.size = size
        self._buffers: list[_Buffer] = []
        self._turn = 0
        try:
            for _ in range(_BUFFERS):
                self._buffers.append(_Buffer(size))
        except BaseException:
            self.close()  # else the first buffer would stay taken
            raise

    def next(self) -> tuple[int, memoryview]:
        """Return descriptor and contents of the buffer that was used less recently."""
        self._turn = 1 - self._turn
        buffer = self._buffers[self._turn]
        return buffer.fd, buffer.contents

    def close(self) -> None:
        """Give the memory back; a process that has mapped it keeps it."""
        for buffer in self._buffers:
            buffer.close()


class _Buffer:
    """A memfd and our view of it."""

    def __init__(self, size: int) -> None:
        self.fd = sealed_memory("holdfast-snapshot", size)
        try:
            os.posix_fallocate(self.fd, 0, size)
            self._map = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise
        self.contents = memoryview(self._map)
        for start in range(0, size, _AT_ONCE_BYTES):
            self._touch(start, min(_AT_ONCE_BYTES, size - start))

    def _touch(self, start: int, size: int) -> None:
        """Map every page now, so that a copy meets no page faults."""
        try:
            self._map.madvise(_POPULATE_WRITE, start, size)
        except OSError:  # an older kernel
            for place in range(start, start + size, mmap.PAGESIZE):
                self.contents[place] = 0

    def close(self) -> None:
        """Unmap and close."""
        self.contents.release()
        self._map.close()
        os.close(self.fd)


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotCopy:
    """A shard that was copied: the descriptor of its memory, and its image for the record."""

    fd: int
    image: ShardImage


class SnapshotPlace:
    """Memory for the snapshots of one layout."""

    def __init__(
        self, layout: ShardLayout, shards: Sequence[int], run_id: str, kind: DigestKind
    ) -> None:
        """Take memory for ``shards``, the worker's own first.

        Raises:
            OSError: there is not enough memory for its own shard.
        """
        first, *seconds = (ShardImage(layout, shard, run_id, kind) for shard in shards)
        self._desks = [_Desk(first)]
        self._attempts = [0, 0]
        try:
            for image in seconds:
                self._desks.append(_Desk(image))
        except (OSError, MemoryError) as error:
            _LOG.warning("no memory for a second copy of %d bytes (%s)", image.size, error)

    def is_free(self, page: HeartbeatPage) -> bool:
        """Return whether the next buffers are free: their snapshots have been written."""
        return page.is_answered(self._attempts[0])

    def take(self, plan: SavePlan, state: Tensors) -> list[SnapshotCopy]:
        """Copy the shards of ``state``; return the copies, the worker's own last.

        So a second copy reaches the writer before it checks the first one.
        """
        self._attempts = [self._attempts[1], plan.attempt]
        return [desk.copy(plan, state) for desk in reversed(self._desks)]

    def close(self) -> None:
        """Give the memory back."""
        for desk in self._desks:
            desk.memory.close()


class _Desk:
    """A shard's image, and the memory for two snapshots of it."""

    def __init__(self, image: ShardImage) -> None:
        self._image = image
        self.memory = SnapshotMemory(image.size)

    def copy(self, plan: SavePlan, state: Tensors) -> SnapshotCopy:
        """Copy the shard into the next buffer."""
        fd, buffer = self.memory.next()
        self._image.copy(buffer, state, plan.header)
        return SnapshotCopy(fd, self._image)


def take_place(
    layout: ShardLayout, shards: Sequence[int], run_id: str, kind: DigestKind
) -> SnapshotPlace | None:
    """Return memory for snapshots, None if there is not enough."""
    try:
        _refuse_too_much(_BUFFERS * len(shards) * layout.nbytes)
        return SnapshotPlace(layout, shards, run_id, kind)
    except (OSError, MemoryError) as error:
        _LOG.warning(
            "no memory for snapshots (%s): the worker itself writes checkpoints, "
            "from a new copy each time",
            error,
        )
        return None


def _refuse_too_much(nbytes: int) -> None:
    """Raise ``OSError`` if this host has not the memory that its workers take just now.

    Linux gives memory out that it does not have, and ends a process when it is used.
    """
    for usage in HostLimits(Path("/dev/shm")).memory():
        if nbytes > usage.free:
            raise OSError(
                errno.ENOMEM,
                f"the snapshots of all workers need {nbytes >> 20} MiB, "
                f"and {usage.place} has {usage.free >> 20} MiB left",
            )
