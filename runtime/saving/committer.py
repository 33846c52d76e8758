"""The committer: writes the shards of a save, all at once, and makes the step visible.

There is one on each host, in the agent's writer, and it works in the same way while workers
live and when they are dead.  Without an agent the first worker has it in a thread.

A save goes to the local directory, if the job has one.  The run directory takes it instead if
it has to be there, or if the local directory has failed.

A save is acknowledged as soon as its rename is durable.  What follows, pruning and reading
back, belongs to the care of old steps, on a thread of its own.  A save that fails leaves
nothing behind: all its writes have ended before its staging is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import replace
from typing import TypeAlias, TypeVar

from holdfast.checkpoint.errors import CheckpointError, SnapshotDamaged, StorageFailed
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.record import ShardRecord
from holdfast.checkpoint.store import CheckpointStore, Staging
from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.run.checkpoint_events import (
    Checkpoint,
    Drained,
    LocalFailed,
    StorageDowngrade,
)
from holdfast.runtime.run.entries import record
from holdfast.runtime.saving.held_save import Contents, HeldSave
from holdfast.runtime.saving.maintenance import NOWHERE, CheckpointMaintenance, Places
from holdfast.runtime.saving.mending import Report, tell_removal
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
        """Open the store, and begin to care for its old steps, if ``has_maintenance``.

        Raises ``KeyUnusable`` if the run's key is no longer in its file.
        """
        self.plan = plan
        self.image_map = plan.image_map()
        self._report = report
        self._maintenance = CheckpointMaintenance(plan, report, is_idle=not has_maintenance)
        self.store = plan.open_store()
        """That of the run directory."""
        self.store.disk.watch(report.disk_moved)
        threads = min(MOST_THREADS, plan.layout.writers)
        self._threads = DaemonExecutor(threads, "holdfast-shard")
        self._downgrades_told: set[str] = set()
        self._newest: Contents | None = None
        self._places = NOWHERE
        """Where the newest save is."""
        self._local_failure = ""
        self._has_told_failure = False

    @property
    def place(self) -> Mapping[str, str]:
        """Where the newest save is, as records and answers tell it: nothing of the run directory.

        What only the local directory has goes with its host.
        """
        return {} if self._places.is_run else {"place": "local directory"}

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

        is_again = save.contents == self._newest
        self._commit(save.ticket, write, self._places_of(save.step) if is_again else NOWHERE)
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

        return self._commit(ticket, write, NOWHERE)

    def close(self, within_s: float) -> None:
        """Let the care of old steps end what it is doing, but wait no longer than told."""
        self._threads.shutdown()
        self._maintenance.close(within_s)

    def _places_of(self, step: int) -> Places:
        """Return where the newest save still is, with files of their sizes.

        Raises ``CommitRefused`` if the directory is another job's.
        """
        self.plan.config.ownership.prove()
        local, known = self._maintenance.local, self._places
        is_put = known.is_run or (local is not None and local.drained_step == step)
        return Places(
            is_local=known.is_local and local is not None and self._has(local.store, step),
            is_run=is_put and self._has(self.store, step),
        )

    def _has(self, store: CheckpointStore, step: int) -> bool:
        try:
            return store.scan(step).manifest().run_id == self.plan.run_id
        except CheckpointError:
            return False

    def _commit(self, ticket: SaveTicket, write: _Write, places: Places) -> int:
        """Commit a save, which is in ``places``, where it has to be; return the bytes written."""
        on_host = not (ticket.needs_run_directory or places.is_anywhere)
        manifest = self._on_host(ticket, write) if on_host else None
        if manifest is not None:
            places = Places(is_local=True, is_run=False)
        if not places.is_run and (ticket.needs_run_directory or not places.is_local):
            manifest = self._in_run(ticket, write)
            places = replace(places, is_run=True)
        self._places = places
        if manifest is None:
            return 0
        self._tell(ticket, manifest, places)
        return manifest.nbytes

    def _tell(self, ticket: SaveTicket, manifest: Manifest, places: Places) -> None:
        committed = Checkpoint(
            step=ticket.step,
            seconds=round(time.monotonic() - ticket.began, 6),
            bytes=manifest.nbytes,
            generation=ticket.generation,
            place=self.place.get("place"),
        )
        record(self._report, committed)
        self._tell_local_failure(ticket.step)
        if places.is_local and places.is_run:
            record(self._report, Drained(step=ticket.step))
        self._maintenance.committed(ticket.step, places)

    def _on_host(self, ticket: SaveTicket, write: _Write) -> Manifest | None:
        """Commit a save in the local directory; return None if there is none, or it has failed."""
        local = self._maintenance.local
        if local is None:
            return None
        self.plan.config.ownership.prove()
        try:
            local.make_directory()
            with local.taking(ticket.step):
                manifest = self._try(local.store, ticket, write)
        except SnapshotDamaged:
            raise
        except CheckpointError as error:  # also a step that is there, and cannot be read
            record(self._report, LocalFailed(step=ticket.step, reason=str(error)))
            self._local_failure = self._local_failure or str(error)
            return None
        if self._has_told_failure:
            self._report.notify(
                f"the local directory takes saves again, from step {ticket.step} on"
            )
        self._local_failure, self._has_told_failure = "", False
        return manifest

    def _tell_local_failure(self, step: int) -> None:
        """Tell the first failure in a row, once it is known that the run directory helps."""
        if self._local_failure and not self._has_told_failure:
            self._has_told_failure = True
            self._report.notify(
                f"the local directory has not taken the checkpoint of step {step}, and saves go to "
                f"the run directory until it does: {self._local_failure}"
            )

    def _in_run(self, ticket: SaveTicket, write: _Write) -> Manifest:
        """Commit a save in the run directory; if it is full, make room and try once more."""
        try:
            return self._put(ticket, write)
        except StorageFailed as failure:
            if not failure.is_full:
                raise
        self._maintenance.make_room(self.plan.layout.nbytes, StagingName(*ticket.key))
        return self._put(ticket, write)

    def _put(self, ticket: SaveTicket, write: _Write) -> Manifest:
        with self._maintenance.in_hand.putting(StagingName(*ticket.key)):
            return self._try(self.store, ticket, write)

    def _try(self, store: CheckpointStore, ticket: SaveTicket, write: _Write) -> Manifest:
        # Else files of ours would stay in another job's directory.
        self.plan.config.ownership.prove()
        staging = store.staging(*ticket.key)
        staging.abandon()  # a writer that was killed may have begun the same save
        try:
            manifest = write(staging)
            self.plan.config.ownership.prove()  # also where saves go to a local directory first
            staging.commit(manifest)
        except BaseException:
            staging.abandon()
            raise
        finally:
            self._tell_downgrades(store)
        if store.take_removal():
            tell_removal(self._report, store, ticket.step)
        return manifest

    def _at_once(
        self, write: Callable[[_Shard], _Written], shards: Iterable[_Shard]
    ) -> list[_Written]:
        """Write all shards at once; raise the first error, once all have ended."""
        writes = [self._threads.submit(write, shard) for shard in shards]
        wait(writes)
        return [found.result() for found in writes]

    def _tell_downgrades(self, store: CheckpointStore) -> None:
        for reason in store.disk.new_downgrades(self._downgrades_told):
            record(self._report, StorageDowngrade(reason=reason))
            self._report.notify(f"checkpoints are at risk: {reason}")
