"""The care of old checkpoints: they are pruned, once a newer one was read back.

It belongs to the committer, and has a thread of its own, so no save waits for it.  What it
reads, it reads at a bounded rate: saves and restores go first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Protocol

from holdfast.checkpoint.errors import CheckpointError, CommitRefused
from holdfast.checkpoint.filesystem import READ_BYTES_PER_S, FileSystem, PacedFileSystem
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.event import Event
from holdfast.runtime.run.checkpoint_events import PruneFailed, StoreRemoved
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.system.daemon_executor import DaemonExecutor


class Reporter(Protocol):
    """Takes events and sentences; neither call raises or waits for long."""

    def record(self, event: Event) -> None:
        """Write an event into the journal."""

    def notify(self, text: str) -> None:
        """Show one line to the user."""

    def disk_moved(self, change: int) -> None:
        """Take note of what the disk is busy with, as `disk.Watch` says; any thread may."""


def tell_removal(report: Reporter, store: CheckpointStore, newest: int) -> None:
    """Tell that the steps of a store before ``newest``, or before older new ones, are gone."""
    directory, step = str(store.directory), newest
    with contextlib.suppress(CheckpointError):
        step = min(store.steps(), default=newest)
    report.record(StoreRemoved(directory=directory, step=step))
    report.notify(
        f"{directory} was removed, or its disk unmounted: it has no checkpoint before step {step}"
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
        self._files = PacedFileSystem(plan.run_dir, bytes_per_s, fence=self._prove)
        self._store = store = plan.open_store(files or self._files)
        store.disk.watch(report.disk_moved)  # a save waits for the room that it makes
        self._pruner = Pruner(store, plan.retention, plan.run_id, plan.unsound)
        self._generation = plan.config.generation
        self._thread = DaemonExecutor(1, "holdfast-care")
        self._asking = threading.Lock()
        self._asked = 0
        """How often the care still has to look at old steps."""
        self._ask()

    def committed(self, step: int) -> None:
        """Prune; ``step`` is new."""
        self._thread.submit(self._heard, self._pruner.marks.forget, step)
        self._ask()

    def make_room(self, needed: int, save: StagingName) -> None:
        """Free space for ``save``, which the disk could not take; return when that is done."""
        self._thread.submit(self._make_room, needed, save).result()

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
        if self._is_idle:
            return
        with self._asking:
            self._asked += 1
        self._thread.submit(self._heard, self._tidy_once)

    def _tidy_once(self) -> None:
        """Look at old steps, unless that is asked for once more behind this."""
        with self._asking:
            self._asked -= 1
            is_last = self._asked == 0
        if is_last:
            self._tell_left(self._pruned())

    def _heard(self, work: Callable[..., None], *arguments: object) -> None:
        """Do a piece of work; an error that nobody expects is told, and the next one follows."""
        try:
            work(*arguments)
        except Exception as error:
            self._tell_left((f"{type(error).__name__}: {error}",))

    def _prove(self) -> None:
        """Raise ``CommitRefused`` if this care may change nothing any more."""
        if self._is_given_up:
            raise CommitRefused("the care of old steps has ended; the next one begins anew")
        self._ownership.prove()

    def _make_room(self, needed: int, save: StagingName) -> None:
        try:
            reasons = self._pruner.make_room(needed, save)
        except CheckpointError as error:  # the directory is another job's now
            reasons = (str(error),)
        self._tell_left(reasons)

    def _tell_left(self, reasons: Iterable[str]) -> None:
        for reason in () if self._is_given_up else reasons:
            self._report.record(PruneFailed(reason=reason))

    def _pruned(self) -> tuple[str, ...]:
        """Remove what may go; return a reason for each name that is left."""
        try:
            left = self._pruner.prune()
            return left + self._store.clean_staging(self._generation)
        except CheckpointError as error:  # the directory is another job's now
            return (str(error),)
