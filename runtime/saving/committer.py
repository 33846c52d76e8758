"""The committer: writes the shards of a save, all at once, and makes the step visible.

There is one on each host, in the agent's writer, and it works in the same way while workers
live and when they are dead.  Without memory for a copy, the first worker has it.

A save is acknowledged as soon as its rename is durable.  What follows, pruning and reading
back, is `CheckpointMaintenance`, on a thread of its own: no save waits for it, and it reads at a
bounded rate.  A save that fails leaves nothing behind: all its writes have ended before its staging
is removed.

No image in memory is trusted: memory may change, and workers may copy their next save into it.  The
records are read once, when all parts are there.  Every use of an image compares it with them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from holdfast.checkpoint.errors import CheckpointError, CommitRefused, StorageFailed
from holdfast.checkpoint.filesystem import READ_BYTES_PER_S, FileSystem, PacedFileSystem
from holdfast.checkpoint.image_map import ImageMap
from holdfast.checkpoint.manifest import Manifest, Placed, ShardRecord
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.store import Staging
from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.event import Event
from holdfast.runtime.run.checkpoint_events import (
    Checkpoint,
    PruneFailed,
    StorageDowngrade,
    StoreRemoved,
)
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.save_messages import SaveCopied, SaveTicket
from holdfast.runtime.system.daemon_executor import DaemonExecutor

MOST_THREADS = 4
"""Writes of a disk, digests and syncs overlap; more threads gain nothing (bench/README.md)."""

_Write: TypeAlias = Callable[[Staging], Manifest]
"""Writes all files of a save into its staging directory."""
_Shard = TypeVar("_Shard")
_Written = TypeVar("_Written")

Contents: TypeAlias = "tuple[int, tuple[tuple[Placed, ...], ...]]"
"""A step and the digests of its tensors: all that a checkpoint is restored from."""


class Reporter(Protocol):
    """Takes events and sentences; neither call raises or waits for long."""

    def record(self, event: Event) -> None:
        """Write an event into the journal."""

    def notify(self, text: str) -> None:
        """Show one line to the user."""

    def disk_moved(self, change: int) -> None:
        """Take note of what the disk is busy with, as `disk.Watch` says; any thread may."""


@dataclass(slots=True)
class HeldSave:
    """A complete save: its plan, its memory and its records."""

    plan: SavePlan
    image_map: ImageMap
    ticket: SaveTicket
    cursor: Mapping[str, object]
    memory: memoryview
    records: tuple[ShardRecord, ...]
    is_durable: bool = False

    @staticmethod
    def of(
        plan: SavePlan,
        image_map: ImageMap,
        copied: SaveCopied,
        cursor: Mapping[str, object],
        memory: memoryview,
    ) -> HeldSave:
        """Return the save that was copied; ``image_map`` is the plan's.

        Raises ``CommitRefused`` if its parts are of different states, and ``SnapshotDamaged`` if
        the memory holds another save by now.
        """
        copied.refuse_different_states()
        ticket = copied.ticket
        header, shards = plan.header(ticket), range(plan.layout.writers)
        records = tuple(image_map.record(memory, shard, header) for shard in shards)
        return HeldSave(plan, image_map, ticket, cursor, memory, records)

    @property
    def step(self) -> int:
        """The step whose state is saved."""
        return self.ticket.step

    @property
    def contents(self) -> Contents:
        """What is saved: equal for two worlds that save the same state."""
        return self.step, tuple(record.pieces for record in self.records)

    @property
    def is_whole(self) -> bool:
        """Whether the memory still holds what its records say; reads all of it."""
        try:
            self.manifest()
            for record in self.records:
                record.check(self.image(record))
        except CheckpointError:
            return False
        return True

    def image(self, record: ShardRecord) -> memoryview:
        """Return the file of a shard in memory."""
        return self.image_map.image(self.memory, record.index, record.size)

    def manifest(self) -> Manifest:
        """Return the manifest; raises ``CommitRefused`` if the records make nothing whole."""
        return self.plan.manifest(self.plan.header(self.ticket), self.records, self.cursor)


class Committer:
    """Commits the saves of one plan."""

    def __init__(
        self,
        plan: SavePlan,
        report: Reporter,
        *,
        has_maintenance: bool = True,
        files: FileSystem | None = None,
        most_threads: int = MOST_THREADS,
    ) -> None:
        """Open the store, and begin to care for its old steps, if ``has_maintenance``.

        It is on other ``files`` than those of the disk if any are given.
        """
        self.plan = plan
        self.image_map = plan.image_map()
        self._report = report
        self._maintenance = CheckpointMaintenance(
            plan, report, is_idle=not has_maintenance, files=files
        )
        self.store = plan.open_store(files)
        self.store.disk.watch(report.disk_moved)
        threads = min(most_threads, plan.layout.writers)
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
        layout, header = self.plan.layout, self.plan.header(ticket)

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
            return self.store.scan(step).manifest().run_id == self.plan.config.record.run_id
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
        self._report.record(committed)
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
            self._tell_removal(ticket.step)
        return manifest

    def _at_once(
        self, write: Callable[[_Shard], _Written], shards: Iterable[_Shard]
    ) -> list[_Written]:
        """Write all shards at once; raise the first error, once all have ended."""
        writes = [self._threads.submit(write, shard) for shard in shards]
        wait(writes)
        return [found.result() for found in writes]

    def _tell_removal(self, newest: int) -> None:
        """Tell that the steps before ``newest``, or before older new ones, are gone."""
        directory, step = str(self.store.directory), newest
        with contextlib.suppress(CheckpointError):
            step = min(self.store.steps(), default=newest)
        self._report.record(StoreRemoved(directory=directory, step=step))
        self._report.notify(
            f"{directory} was removed, or its disk unmounted: it has no checkpoint before "
            f"step {step}"
        )

    def _tell_downgrades(self) -> None:
        for reason in self.store.disk.new_downgrades(self._downgrades_told):
            self._report.record(StorageDowngrade(reason=reason))
            self._report.notify(f"checkpoints are at risk: {reason}")


class CheckpointMaintenance:
    """Prunes the steps of one plan's run, and reports failures."""

    def __init__(
        self,
        plan: SavePlan,
        report: Reporter,
        *,
        is_idle: bool = False,
        files: FileSystem | None = None,
        bytes_per_s: float = READ_BYTES_PER_S,
    ) -> None:
        """Begin with the removal of what dead launches have left.

        One that ``is_idle`` only makes room: the writer of another host looks after old steps.
        """
        self._is_idle = is_idle
        self._report = report
        self._ownership = plan.config.ownership
        self._is_given_up = False
        self._files = PacedFileSystem(plan.config.options.run_dir, bytes_per_s, fence=self._prove)
        self._store = store = plan.open_store(files or self._files)
        store.disk.watch(report.disk_moved)  # a save waits for the room that it makes
        self._pruner = Pruner(store, plan.terms.retention, plan.config.record.run_id, plan.unsound)
        self._generation = plan.config.generation
        self._thread = DaemonExecutor(1, "holdfast-care")
        self._asked = 0
        self._ask()

    def committed(self, step: int) -> None:
        """Prune; ``step`` is new."""
        self._thread.submit(self._tell_left, self._pruner.marks.forget, step)
        self._ask()

    def make_room(self, needed: int, save: StagingName) -> None:
        """Free space for ``save``, which the disk could not take; return when that is done."""
        self._thread.submit(self._tell_left, self._pruner.make_room, needed, save).result()

    def close(self, within_s: float) -> None:
        """End after the work that was asked for, but wait no longer than told.

        A step that is being read then is read no further, and nothing goes for it.
        """
        last = self._thread.submit(lambda: None)
        self._thread.shutdown()
        wait([last], within_s)
        self._is_given_up = True
        self._files.end()

    def _ask(self) -> None:
        """Have old steps looked at, once what is queued by now was done."""
        if not self._is_idle:
            self._asked += 1
            self._thread.submit(self._tell_left, self._tidy, self._asked)

    def _tidy(self, number: int) -> tuple[str, ...]:
        """Remove what may go, unless that is asked for once more behind this.

        Return a reason for each name that is left.
        """
        if number != self._asked:
            return ()
        return self._pruner.prune() + self._store.clean_staging(self._generation)

    def _prove(self) -> None:
        """Raise ``CommitRefused`` if this care may change nothing any more."""
        if self._is_given_up:
            raise CommitRefused("the care of old steps has ended; the next one begins anew")
        self._ownership.prove()

    def _tell_left(self, work: Callable[..., tuple[str, ...] | None], *arguments: object) -> None:
        """Do a piece of work, and record what it leaves; the next one follows after any error."""
        try:
            reasons = work(*arguments) or ()
        except CheckpointError as error:  # the directory is another job's now
            reasons = (str(error),)
        except Exception as error:
            reasons = (f"{type(error).__name__}: {error}",)
        for reason in () if self._is_given_up else reasons:
            self._report.record(PruneFailed(reason=reason))
