"""The committer: writes the shards of a save, all at once, and makes the step visible.

There is one on each host, in the agent's writer, and it works in the same way while workers
live and when they are dead.  Without an agent the first worker has it in a thread.

A save is acknowledged as soon as its rename is durable.  What follows, pruning and reading
back, belongs to the care of old steps, on a thread of its own.  A save that fails leaves
nothing behind: all its writes have ended before its staging is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from holdfast.checkpoint.errors import CheckpointError, StorageFailed
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.names import StagingName
from holdfast.checkpoint.format.record import ShardRecord
from holdfast.checkpoint.format.tensor import Tensors
from holdfast.checkpoint.store.store import Staging
from holdfast.runtime.committing.checkpoint_care import CheckpointCare
from holdfast.runtime.committing.held_save import Contents, HeldSave
from holdfast.runtime.committing.report import Report
from holdfast.runtime.committing.save_plan import SavePlan
from holdfast.runtime.committing.save_ticket import SaveTicket

MOST_THREADS = 4
"""Writes of a disk, digests and syncs overlap; more threads gain nothing (bench/README.md)."""

_Shard = TypeVar("_Shard")
_Written = TypeVar("_Written")


class Committer:
    """Commits the saves of one plan."""

    def __init__(self, plan: SavePlan, report: Report) -> None:
        """Open the store, and begin to care for its old steps.

        Raises ``KeyUnusable`` if the run's key is no longer in its file, and ``OSError`` if the
        local directory cannot be made.
        """
        self.plan = plan
        self.image_map = plan.image_map()
        self._report = report
        self._care = CheckpointCare(plan, report)
        local = self._care.local
        self.store = plan.open_store() if local is None else local.store
        self.store.disk.watch(report.disk_moved)
        threads = min(MOST_THREADS, plan.layout.writers)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-shard")
        self._downgrades_told: set[str] = set()
        self._newest: Contents | None = None

    def commit(self, save: HeldSave) -> int:
        """Make a save in memory a durable checkpoint; return its bytes.

        One that is there already, with the same bytes, is not written again: the survivors of a
        death save a state once more, if they do not know whether the first save was complete.
        Raises ``CheckpointError`` or ``OSError``; then nothing of it is left in the run directory.
        """
        manifest = save.manifest()
        if save.contents == self._newest and self._has(save.step):
            self._drain_if_last(save.ticket)
            save.is_durable = True
            return manifest.nbytes

        def write(staging: Staging) -> Manifest:
            def write_one(record: ShardRecord) -> None:
                staging.write_image(save.image(record), record, manifest.writers)

            self._at_once(write_one, save.records)
            return manifest

        nbytes = self._commit(save.ticket, write)
        save.is_durable = True
        self._newest = save.contents
        return nbytes

    def _has(self, step: int) -> bool:
        """Whether the directory still is the job's, and has its step with files of their sizes.

        Raises ``CommitRefused`` if the directory is another job's.
        """
        self.plan.ownership.prove()
        try:
            return self.store.scan(step).manifest().run_id == self.plan.run_id
        except CheckpointError:
            return False

    def commit_state(self, ticket: SaveTicket, cursor: Mapping[str, object], state: Tensors) -> int:
        """Make ``state`` itself a durable checkpoint, without a copy; it may not change meanwhile.

        Raises ``CheckpointError`` or ``OSError``; then nothing of it is left.
        """
        layout, header = self.plan.layout, ticket.header(self.plan.run_id)

        def write(staging: Staging) -> Manifest:
            def write_one(shard: int) -> ShardRecord:
                return staging.write_shard(state, layout, shard, header)

            records = self._at_once(write_one, range(layout.writers))
            return self.plan.manifest(header, records, cursor)

        return self._commit(ticket, write)

    def close(self, within_s: float) -> None:
        """Let the care of old steps end what it is doing, but wait no longer than told."""
        self._threads.shutdown(wait=False)
        self._care.close(within_s)

    def _commit(self, ticket: SaveTicket, write: Callable[[Staging], Manifest]) -> int:
        """Commit a save; if the disk is full, make room and try once more."""
        try:
            manifest = self._try(ticket, write)
        except StorageFailed as failure:
            if not failure.is_full or self._care.local is not None:
                raise
            nbytes = self.plan.layout.nbytes
            self._care.make_room(nbytes, StagingName(*ticket.key))
            manifest = self._try(ticket, write)
        self._report.record(
            "checkpoint",
            step=ticket.step,
            generation=ticket.generation,
            seconds=round(time.monotonic() - ticket.began, 6),
            bytes=manifest.nbytes,
        )
        self._care.committed(ticket.step)
        self._drain_if_last(ticket)
        return manifest.nbytes

    def _drain_if_last(self, ticket: SaveTicket) -> None:
        if ticket.is_last:
            self._care.drain(ticket.step)

    def _try(self, ticket: SaveTicket, write: Callable[[Staging], Manifest]) -> Manifest:
        self.plan.ownership.prove()  # else files of ours would stay in another job's directory
        staging = self.store.staging(*ticket.key)
        staging.abandon()  # a writer that was killed may have begun the same save
        try:
            manifest = write(staging)
            self.plan.ownership.prove()  # also where saves go to a local directory first
            staging.commit(manifest)
        except BaseException:
            staging.abandon()
            raise
        finally:
            self._tell_downgrades()
        return manifest

    def _at_once(
        self, write: Callable[[_Shard], _Written], shards: Iterable[_Shard]
    ) -> list[_Written]:
        """Write all shards at once; raise the first error, once all have ended."""
        writes = [self._threads.submit(write, shard) for shard in shards]
        wait(writes)
        return [found.result() for found in writes]

    def _tell_downgrades(self) -> None:
        for reason in self.store.disk.new_downgrades(self._downgrades_told):
            self._report.record("storage_downgrade", reason=reason)
            self._report.notify(f"checkpoints are at risk: {reason}")
