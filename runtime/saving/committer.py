"""The committer: writes the shards of a save, all at once, and makes the step visible.

There is one on each host, in the agent's writer, and it works in the same way while workers
live and when they are dead.  Without memory for a copy, the first worker has it.

A save is acknowledged as soon as its rename is durable.  What follows, pruning and reading
back, belongs to the care of old steps, on a thread of its own.  A save that fails leaves
nothing behind: all its writes have ended before its staging is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from typing import TypeAlias, TypeVar

from holdfast.checkpoint.errors import CheckpointError, StorageFailed
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.record import ShardRecord
from holdfast.checkpoint.store import Staging
from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.run.checkpoint_events import Checkpoint, StorageDowngrade
from holdfast.runtime.run.entries import record
from holdfast.runtime.saving.held_save import Contents, HeldSave
from holdfast.runtime.saving.maintenance import CheckpointMaintenance, Report, tell_removal
from holdfast.runtime.saving.plan import SavePlan, SaveTicket
from holdfast.runtime.system.daemon_executor import DaemonExecutor

MOST_THREADS = 4
"""Writes of a disk, digests and syncs overlap; more threads gain nothing (bench/README.md)."""

_Write: TypeAlias = Callable[[Staging], Manifest]
"""Writes all files of a save into its staging directory."""
_Shard = TypeVar("_Shard")
_Written = TypeVar("_Written")


class Committer:
    """Commits the saves of one plan."""

    def __init__(self, plan: SavePlan, report: Report, *, has_maintenance: bool = True) -> None:
        """Open the store, and begin to care for its old steps, if ``has_maintenance``."""
        self.plan = plan
        self.image_map = plan.image_map()
        self._report = report
        self._maintenance = CheckpointMaintenance(plan, report, is_idle=not has_maintenance)
        self.store = plan.open_store()
        self.store.disk.watch(report.disk_moved)
        threads = min(MOST_THREADS, plan.layout.writers)
        self._threads = DaemonExecutor(threads, "holdfast-shard")
        self._downgrades_told: set[str] = set()
        self._newest: Contents | None = None

    def commit(self, save: HeldSave) -> int:
        """Make a save in memory a durable checkpoint; return its bytes.

        One that is there already, with the same bytes, is not written again: the survivors of a
        death save a state once more, if they do not know whether the first save was complete.
        Raises ``CheckpointError`` or ``OSError``; then nothing of it is left in the run directory.
        """
        manifest = save.manifest()

        def write(staging: Staging) -> Manifest:
            def write_one(record: ShardRecord) -> None:
                staging.write_image(save.image(record), record, manifest.writers)

            self._at_once(write_one, save.records)
            return manifest

        if save.contents != self._newest or not self._has(save.step):
            self._commit(save.ticket, write)
        save.is_durable = True
        self._newest = save.contents
        return manifest.nbytes

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
        self._threads.shutdown()
        self._maintenance.close(within_s)

    def _has(self, step: int) -> bool:
        """Return whether the newest save still is there, with files of their sizes.

        Raises ``CommitRefused`` if the directory is another job's.
        """
        self.plan.config.ownership.prove()
        try:
            return self.store.scan(step).manifest().run_id == self.plan.run_id
        except CheckpointError:
            return False

    def _commit(self, ticket: SaveTicket, write: _Write) -> int:
        """Commit a save, and return the bytes written; if the disk is full, make room once."""
        try:
            manifest = self._try(ticket, write)
        except StorageFailed as failure:
            if not failure.is_full:
                raise
            self._maintenance.make_room(self.plan.layout.nbytes, StagingName(*ticket.key))
            manifest = self._try(ticket, write)
        committed = Checkpoint(
            step=ticket.step,
            seconds=round(time.monotonic() - ticket.began, 6),
            bytes=manifest.nbytes,
            generation=ticket.generation,
        )
        record(self._report, committed)
        self._maintenance.committed(ticket.step)
        return manifest.nbytes

    def _try(self, ticket: SaveTicket, write: _Write) -> Manifest:
        # Else files of ours would stay in another job's directory.
        self.plan.config.ownership.prove()
        staging = self.store.staging(*ticket.key)
        staging.abandon()  # a writer that was killed may have begun the same save
        try:
            manifest = write(staging)
            staging.commit(manifest)
        except BaseException:
            staging.abandon()
            raise
        finally:
            self._tell_downgrades()
        if self.store.take_removal():
            tell_removal(self._report, self.store, ticket.step)
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
            record(self._report, StorageDowngrade(reason=reason))
            self._report.notify(f"checkpoints are at risk: {reason}")
