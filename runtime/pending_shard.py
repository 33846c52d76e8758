"""A worker's shard on its way to the disk, by one of two ways.

Usually it is a snapshot in memory that the agent has written: training goes on
beside another process, and the snapshot is written even if this worker dies.
Without an agent, or without memory for snapshots, a thread of this worker writes
it from a copy of its share.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.record import ShardRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.placement import Slices
from holdfast.runtime.context import WorkerContext
from holdfast.runtime.heartbeat import HeartbeatPage
from holdfast.runtime.snapshot import SavePlan, Snapshot, State
from holdfast.runtime.snapshot_place import SnapshotPlace, take_place

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
        self._memory: Future[SnapshotPlace | None] | None = None
        self._shape: object = None

    def prepare(self, plan: SavePlan, shards: Slices) -> None:
        """Begin to lay out ``shards``, its own first, and to take memory, in the background."""
        shape = (plan.layout, shards, plan.header.run_id, self._store.digest_kind)
        if self._send is not None and self._shape != shape:
            self._shape = shape
            before, self._memory = self._memory, self._memory_thread.submit(take_place, *shape)
            if before is not None:
                self._memory_thread.submit(_give_back, before)

    def begin(self, plan: SavePlan, shards: Slices, state: State, digest: str) -> PendingShard:
        """Copy this worker's share of ``state``, and begin to make it durable.

        The first of ``shards`` is its own; of the others it holds second copies.
        """
        self.prepare(plan, shards)
        place = self._memory.result() if self._memory is not None else None
        if place is None or self._send is None or not place.is_free(self._context.page):
            return self._begin_thread(plan, shards[0], state)
        for fd, record in place.take(plan, state):
            key_file = self._context.config.key_file
            snapshot = Snapshot(self._context.run_dir, plan, record, digest, key_file)
            self._hand_over(snapshot, fd, is_second=record.index != shards[0])
        return _AgentShard(self._context.page, plan.attempt, record)

    def _hand_over(self, snapshot: Snapshot, fd: int, *, is_second: bool) -> None:
        assert self._send is not None
        worker, shard = self._context.config.worker, snapshot.record.index
        tags = {"kind": "snapshot", "worker": worker, "shard": shard, "is_second": is_second}
        self._send({**tags, **snapshot.as_json()}, [fd])

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


def _give_back(before: Future[SnapshotPlace | None]) -> None:
    place = before.result()
    if place is not None:
        place.close()
