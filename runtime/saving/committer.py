"""The committer: writes the shards of a host's share, all at once, and makes steps visible.

There is one in each writer, and it works in the same way while workers live and when they are dead.
The one on the host of the head commits the saves of all hosts.

A save is acknowledged as soon as its rename is durable.  What follows, pruning and reading
back, is `CheckpointMaintenance`, on a thread of its own: no save waits for it, and it reads at a
bounded rate.  The files of a save that has failed are removed when nobody writes them any more.

No image in memory is trusted: memory may change, and workers may copy their next save into it.  The
records are read once, when all parts are there.  Every use of an image compares it with them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from holdfast.checkpoint.errors import CheckpointError, CommitRefused
from holdfast.checkpoint.filesystem import READ_BYTES_PER_S, FileSystem, PacedFileSystem
from holdfast.checkpoint.image_map import ImageMap
from holdfast.checkpoint.manifest import Placed
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.shares import written_by
from holdfast.checkpoint.tensor import ShardLayout
from holdfast.recovery.event import Event
from holdfast.recovery.saves import CommitSave, SaveTicket, WriteShare
from holdfast.runtime.run.checkpoint_events import (
    Checkpoint,
    PruneFailed,
    StorageDowngrade,
    StoreRemoved,
)
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.system.daemon_executor import DaemonExecutor

MOST_THREADS = 4
"""Writes of a disk, digests and syncs overlap; more threads gain nothing (bench/README.md)."""

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


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """The plan of the saves in one memory, and where their bytes lie there."""

    plan: SavePlan
    image_map: ImageMap


@functools.lru_cache(maxsize=2)
def _whole_map(layout: ShardLayout) -> ImageMap:
    """Return the map of all shards; a layout of many tensors is kept for hours."""
    return ImageMap.of(layout, range(layout.writers))


class Committer:
    """Writes the shards of saves, and commits the saves of one plan."""

    def __init__(
        self,
        plan: SavePlan,
        report: Reporter,
        *,
        has_maintenance: bool = True,
        files: FileSystem | None = None,
    ) -> None:
        """Open the store, and begin to care for its old steps, if ``has_maintenance``.

        Only such a committer tells what the file system lacks: others of the job find the same.
        The store is on other ``files`` than those of the disk if any are given.
        """
        self.plan = plan
        self._tells = has_maintenance
        self._report = report
        self._maintenance = CheckpointMaintenance(
            plan, report, is_idle=not has_maintenance, files=files
        )
        self.store = plan.open_store(files)
        self.store.disk.watch(report.disk_moved)
        self._threads = DaemonExecutor(min(MOST_THREADS, plan.layout.writers), "holdfast-shard")
        self._downgrades_told: set[str] = set()
        self._newest: Contents | None = None

    def write(self, work: WriteShare, found: PlannedMemory, memory: memoryview) -> tuple[str, ...]:
        """Make the shards of a share durable that lie in ``memory``; return their records.

        Raises ``CheckpointError`` or ``OSError``.
        """
        ticket, layout = work.ticket, found.plan.layout
        header, staging = found.plan.header(ticket), self.store.staging(*ticket.key)

        def write_one(shard: int) -> str:
            packed = found.image_map.packed(memory, shard)
            record = found.image_map.record(packed, shard, header)
            image = found.image_map.image(memory, shard, record.size)
            staging.write_image(image, record, layout.writers)
            return base64.b64encode(packed).decode()

        self._prove()
        try:
            shards = written_by(work.share, ticket.hosts, layout.writers)
            writes = [self._threads.submit(write_one, shard) for shard in shards]
            wait(writes)  # an error is raised once all have ended
            return tuple(found.result() for found in writes)
        finally:
            self._tell_state_of_store(ticket.step)

    def commit(self, work: CommitSave, plan: SavePlan) -> None:
        """Make a save visible whose shards are all durable.

        One that is there already, with the same bytes, stays as it is: the survivors of a death
        save a state once more, if they do not know whether the first save was complete.
        Raises ``CheckpointError`` or ``OSError``.
        """
        ticket, header = work.ticket, plan.header(work.ticket)
        image_map = _whole_map(plan.layout)
        packed = [base64.b64decode(text) for texts in work.records for text in texts]
        records = [image_map.record(rows, shard, header) for shard, rows in enumerate(packed)]
        manifest = plan.manifest(header, records, json.loads(work.cursor))
        self._prove()
        staging = self.store.staging(*ticket.key)
        contents: Contents = ticket.step, tuple(record.pieces for record in records)
        if contents == self._newest and self._has(ticket.step):
            staging.abandon()
            return
        try:
            staging.commit(manifest)
        finally:
            self._tell_state_of_store(ticket.step)
        self._newest = contents
        seconds = round(time.monotonic() - work.began, 6)
        self._report.record(Checkpoint(ticket.step, seconds, manifest.nbytes, ticket.generation))
        self._maintenance.committed(ticket.step)

    def make_space(self, ticket: SaveTicket) -> None:
        """Free space for a save that a disk could not take, as far as there is any."""
        self._maintenance.make_room(self.plan.layout.nbytes, StagingName(*ticket.key))

    def remove(self, ticket: SaveTicket) -> None:
        """Remove what was written of a save that has failed, as far as possible."""
        self._prove()
        self.store.staging(*ticket.key).abandon()

    def close(self, within_s: float) -> None:
        """Let the care of old steps end what it is doing, but wait no longer than told."""
        self._threads.shutdown()
        self._maintenance.close(within_s)

    def _prove(self) -> None:
        """Raise ``CommitRefused`` if the directory is another job's: no file of ours goes there."""
        self.plan.config.ownership.prove()

    def _has(self, step: int) -> bool:
        """Return whether the newest save still is there, with files of their sizes."""
        try:
            return self.store.scan(step).manifest().run_id == self.plan.config.record.run_id
        except CheckpointError:
            return False

    def _tell_state_of_store(self, step: int) -> None:
        """Tell what the store lacks, and whether it was removed before this step."""
        for reason in self.store.disk.new_downgrades(self._downgrades_told) if self._tells else ():
            self._report.record(StorageDowngrade(reason=reason))
            self._report.notify(f"checkpoints are at risk: {reason}")
        if self.store.take_removal():
            self._tell_removal(step)

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
