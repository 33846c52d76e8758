"""A worker's shard on its way to the disk, by one of two ways.

Usually it is a snapshot in memory that the agent has written: training goes on
beside another process, and the snapshot is written even if this worker dies.
Without an agent, or without memory for snapshots, a thread of this worker writes
it from a copy of its share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.image import ShardImage
from holdfast.checkpoint.record import ShardRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.context import WorkerContext
from holdfast.runtime.heartbeat import HeartbeatPage
from holdfast.runtime.snapshot import SavePlan, Snapshot
from holdfast.runtime.snapshot_memory import SnapshotMemory

State: TypeAlias = Mapping[str, npt.NDArray[np.generic]]

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.001


class SnapshotNotWritten(CheckpointError):
    """The agent's writer has failed, and has told why in the journal."""


class PendingShard(Protocol):
    """A shard that is being made durable."""

    @property
    def is_done(self) -> bool:
        """Whether it is durable, or has failed."""

    @property
    def failure(self) -> BaseException | None:
        """Why it has failed, if it has."""

    @property
    def record(self) -> ShardRecord:
        """What it is; only of one that is done and has not failed."""

    def wait(self, timeout_s: float) -> None:
        """Wait a little for it to be done."""


class _ThreadShard:
    """A shard that a thread of this worker writes."""

    def __init__(self, future: Future[ShardRecord]) -> None:
        self._future = future

    @property
    def is_done(self) -> bool:
        return self._future.done()

    @property
    def failure(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    @property
    def record(self) -> ShardRecord:
        return self._future.result()

    def wait(self, timeout_s: float) -> None:
        wait([self._future], timeout_s)


class _AgentShard:
    """A snapshot that the agent has written; its answer is in the heartbeat page."""

    def __init__(self, page: HeartbeatPage, attempt: int, record: ShardRecord) -> None:
        self._page = page
        self._attempt = attempt
        self.record = record

    @property
    def is_done(self) -> bool:
        return self._page.is_answered(self._attempt)

    @property
    def failure(self) -> BaseException | None:
        if self._page.failed_save != self._attempt:
            return None
        return SnapshotNotWritten("the agent could not write the snapshot; the journal says why")

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.is_done and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


class Shards:
    """Begins the shards of one worker."""

    def __init__(self, context: WorkerContext, store: CheckpointStore, thread: Executor) -> None:
        self._context = context
        self._store = store
        self._thread = thread
        self._send = context.send_snapshot
        # Not that of the commits: one that hangs must not keep the next snapshot waiting.
        self._memory_thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-memory")
        self._memory: Future[_Place | None] | None = None
        self._shape: object = None

    def prepare(self, plan: SavePlan, rank: int) -> None:
        """Begin to lay out the shard and to take memory for it, in the background."""
        shape = (plan.layout, rank, plan.header.run_id)
        if self._send is not None and self._shape != shape:
            self._shape = shape
            before, self._memory = self._memory, self._memory_thread.submit(_take_place, *shape)
            if before is not None:
                self._memory_thread.submit(_give_back, before)

    def begin(self, plan: SavePlan, rank: int, state: State, digest: str) -> PendingShard:
        """Copy this worker's share of ``state``, and begin to make it durable."""
        self.prepare(plan, rank)
        place = self._memory.result() if self._memory is not None else None
        if place is None or self._send is None or not place.is_free(self._context.page):
            return self._begin_thread(plan, rank, state)
        fd, record = place.take(plan, state)
        snapshot = Snapshot(self._context.run_dir, plan, record, digest)
        worker = self._context.config.worker
        self._send({"kind": "snapshot", "worker": worker, **snapshot.as_json()}, [fd])
        return _AgentShard(self._context.page, plan.attempt, record)

    def _begin_thread(self, plan: SavePlan, rank: int, state: State) -> PendingShard:
        mine = {piece.spec.name for piece in plan.layout.pieces(rank)}
        copy = {
            name: np.array(value, copy=True) if name in mine else value
            for name, value in state.items()
        }
        staging = self._store.staging(*plan.key)
        return _ThreadShard(
            self._thread.submit(staging.write_shard, copy, plan.layout, rank, plan.header)
        )


class _Place:
    """Memory for the snapshots of one layout."""

    def __init__(self, image: ShardImage) -> None:
        self._image = image
        self.memory = SnapshotMemory(image.size)
        self._attempts = [0, 0]

    def is_free(self, page: HeartbeatPage) -> bool:
        """Return whether the buffer whose turn it is has been written."""
        return page.is_answered(self._attempts[0])

    def take(self, plan: SavePlan, state: State) -> tuple[int, ShardRecord]:
        """Make a snapshot; return its descriptor and record."""
        fd, buffer = self.memory.next()
        self._attempts = [self._attempts[1], plan.attempt]
        return fd, self._image.fill(buffer, state, plan.header)


def _take_place(layout: Any, rank: int, run_id: str) -> _Place | None:
    """Return memory for snapshots, None if there is not that much."""
    image = ShardImage(layout, rank, run_id)
    try:
        return _Place(image)
    except (OSError, MemoryError) as error:
        _LOG.warning(
            "no memory for snapshots of 2 x %d bytes (%s): checkpoints are written by the "
            "worker itself, from a copy made anew each time",
            image.size,
            error,
        )
        return None


def _give_back(before: Future[_Place | None]) -> None:
    place = before.result()
    if place is not None:
        place.memory.close()
