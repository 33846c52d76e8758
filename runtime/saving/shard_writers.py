"""A worker's shard on its way to the disk, by one of two ways.

Usually it is a snapshot in memory, and a process of the agent writes it.  Training goes on
meanwhile, and the snapshot is written even if this worker dies.  Without an agent, or
without memory for snapshots, a thread of this worker writes the shard from a copy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.record import ShardRecord
from holdfast.checkpoint.format.tensor import Tensors
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.recovery.placement import Slices
from holdfast.runtime.saving.snapshot import SavePlan, Snapshot
from holdfast.runtime.saving.snapshot_place import SnapshotCopy, SnapshotPlace, take_place
from holdfast.runtime.worker.context import WorkerContext

_LOOK_S = 0.001


class SnapshotNotWritten(CheckpointError):
    """The agent's writer has failed; the journal holds its reason."""


class PendingShard(Protocol):
    """A shard that is being made durable."""

    @property
    def is_done(self) -> bool:
        """Whether it is durable, or has failed."""

    @property
    def failure(self) -> BaseException | None:
        """The error if it has failed, else None."""

    @property
    def record(self) -> ShardRecord:
        """The shard's record; only valid once the shard is done and has not failed."""

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Make the shard's record and send the snapshot to the agent, if the agent writes it.

        Another thread calls this once; ``state`` is still the state that was copied.
        """

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until it is done."""


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

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Do nothing: this worker writes the shard itself."""

    def wait(self, timeout_s: float) -> None:
        wait([self._future], timeout_s)


class _AgentShard:
    """A snapshot that the agent's writer writes; the answer comes in the heartbeat page."""

    def __init__(
        self, context: WorkerContext, plan: SavePlan, copies: Sequence[SnapshotCopy]
    ) -> None:
        self._context = context
        self._page = context.page
        self._plan = plan
        self._attempt = plan.attempt
        self._copies = copies
        self._record: ShardRecord | None = None

    @property
    def record(self) -> ShardRecord:
        assert self._record is not None
        return self._record

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Send the snapshots and their records to the agent; second copies first."""
        for copy in self._copies:
            self._record = copy.image.describe(state, self._plan.header)
            self._send(copy, self._record, state_digest)

    def _send(self, copy: SnapshotCopy, record: ShardRecord, state_digest: str) -> None:
        config, run_dir = self._context.config, self._context.run_dir
        snapshot = Snapshot(run_dir, self._plan, record, state_digest, config.key_file)
        is_second = copy is not self._copies[-1]
        tags = {"worker": config.worker, "shard": record.index, "is_second": is_second}
        assert self._context.send_snapshot is not None
        self._context.send_snapshot({"kind": "snapshot", **tags, **snapshot.as_json()}, [copy.fd])

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
        # Apart from the thread of commits: a commit that hangs must not delay a snapshot.
        self._memory_thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-memory")
        self._memory: Future[SnapshotPlace | None] | None = None
        self._shape: object = None

    def prepare(self, plan: SavePlan, shards: Slices) -> None:
        """Begin to lay out ``shards``, its own first, and to take memory, in the background."""
        shape = (plan.layout, shards, plan.header.run_id, self._store.digest_kind)
        if self._context.send_snapshot is not None and self._shape != shape:
            self._shape = shape
            if self._memory is not None:
                self._memory_thread.submit(_give_back, self._memory)
            self._memory = self._memory_thread.submit(take_place, *shape)

    def begin(self, plan: SavePlan, shards: Slices, state: Tensors) -> PendingShard:
        """Copy this worker's share of ``state``; ``hand_over`` must follow.

        The first of ``shards`` is its own; it holds second copies of the others.
        """
        self.prepare(plan, shards)
        place = self._memory.result() if self._memory is not None else None
        if place is None or not place.is_free(self._context.page):
            return self._begin_thread(plan, shards[0], state)
        return _AgentShard(self._context, plan, place.take(plan, state))

    def close(self) -> None:
        """Give the memory back."""
        if self._memory is not None:
            self._memory_thread.submit(_give_back, self._memory)
        self._memory_thread.shutdown(wait=False)

    def _begin_thread(self, plan: SavePlan, rank: int, state: Tensors) -> PendingShard:
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
