"""The care of old checkpoints: they are pruned, once a newer one was read back.

It belongs to the committer, and has a thread of its own, so no save waits for it.  What it
reads, it reads at a bounded rate: saves and restores go first.

A drain may be of the step that the last save of a job puts into the run directory as well: they
take turns (`StepsInHand`).  Different steps wait for each other as little as possible, since either
disk may hang.  Invariant: room is made while nobody begins a step, and spares what is staged of
those in hand.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass

from holdfast.checkpoint.errors import CheckpointError, CommitRefused, StorageFailed
from holdfast.checkpoint.filesystem import LocalFileSystem, PacedFileSystem
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.retention import Pruner
from holdfast.runtime.run.checkpoint_events import (
    Drained,
    DrainFailed,
    PruneFailed,
)
from holdfast.runtime.run.entries import record
from holdfast.runtime.saving.local_level import LocalLevel
from holdfast.runtime.saving.mending import Report, tell_removal
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.system.daemon_executor import DaemonExecutor

_SPACE = "--keep-space"


@dataclass(frozen=True, slots=True)
class Places:
    """Where a new step is: in the local directory, in the run directory, or in both."""

    is_local: bool
    is_run: bool

    @property
    def is_anywhere(self) -> bool:
        """Whether any directory has it."""
        return self.is_local or self.is_run


NOWHERE = Places(is_local=False, is_run=False)


class CheckpointMaintenance:
    """Prunes the steps of one plan's run, and reports failures."""

    def __init__(self, plan: SavePlan, report: Report, *, is_idle: bool = False) -> None:
        """Begin with the removal of what dead launches have left.

        One that ``is_idle`` only makes room: the writer of another host looks after old steps.
        """
        self._is_idle = is_idle
        self._report = report
        self._ownership = plan.config.ownership
        self._is_given_up = False
        self._files = PacedFileSystem(plan.run_dir, fence=self._prove)
        self._store = store = plan.open_store(self._files)
        store.disk.watch(report.disk_moved)  # a save waits for the room that it makes
        self._marks = ReadMarks()
        for step in plan.unsound:
            self._marks.mark_damaged(step)
        self._steps = OwnSteps(store, plan.run_id)
        self._pruner = Pruner(self._steps, plan.retention, self._marks)
        self._generation = plan.config.generation
        self._nbytes = plan.layout.nbytes
        self.local = self._local_level(plan)
        self.in_hand = StepsInHand()
        self._thread = DaemonExecutor(1, "holdfast-care")
        self._asking = threading.Lock()
        self._asked = 0
        """How often the care still has to look at old steps."""
        self._ask()

    def _local_level(self, plan: SavePlan) -> LocalLevel | None:
        directory = plan.config.local_directory
        if directory is None:
            return None
        run = plan.open_store(LocalFileSystem(plan.run_dir, self._prove))
        run.disk.watch(self._report.disk_moved)
        fence = self._prove_that_it_goes_on
        level = LocalLevel(directory, plan.drain_every, run, plan.run_id, fence, plan.unsound)
        level.store.disk.watch(self._report.disk_moved)
        return level

    def committed(self, step: int, places: Places) -> None:
        """Prune; ``step`` is new."""
        self._thread.submit(self._heard, self._note, step, places)
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
            self._tidy()

    def _heard(self, work: Callable[..., None], *arguments: object) -> None:
        """Do a piece of work; an error that nobody expects is told, and the next one follows."""
        try:
            work(*arguments)
        except Exception as error:
            self._tell_left((f"{type(error).__name__}: {error}",))

    def _prove(self) -> None:
        """Raise ``CommitRefused`` if this care may change nothing any more."""
        self._prove_that_it_goes_on()
        self._ownership.prove()

    def _prove_that_it_goes_on(self) -> None:
        if self._is_given_up:
            raise CommitRefused("the care of old steps has ended; the next one begins anew")

    def _note(self, step: int, places: Places) -> None:
        now = time.monotonic()
        if self.local is not None and places.is_local:
            self.local.committed(step, now)
        if places.is_run:
            self._forget(step)
            if self.local is not None:
                self.local.drained(step, now)
                self._tell_left(() if places.is_local else self.local.put_elsewhere(step))

    def _forget(self, step: int) -> None:
        self._marks.forget(step)
        self._steps.forget(step)

    def _drain(self, local: LocalLevel, step: int) -> None:
        """Drain a step; if the run directory is full, make room and try once more."""
        try:
            self._put(local, step)
        except StorageFailed as failure:
            if not failure.is_full:
                raise
            self._make_room(self._nbytes, StagingName(step, self._generation, 1))
            self._put(local, step)
        self._forget(step)
        record(self._report, Drained(step=step))

    def _put(self, local: LocalLevel, step: int) -> None:
        with self.in_hand.putting(StagingName(step, self._generation, 1)):
            local.drain(step, time.monotonic())

    def _drain_if_due(self, local: LocalLevel, now: float) -> None:
        """Drain the newest step; a failure is told, and saves go on."""
        while self._wants_an_older_one(local, now):
            pass
        if local.take_removal():
            tell_removal(self._report, self._store, local.drained_step)

    def _wants_an_older_one(self, local: LocalLevel, now: float) -> bool:
        """Drain the newest step if that is due; return whether it is damaged and passed over."""
        step = None
        try:
            step = local.newest() if local.is_due(now) else None
            if step is not None:
                self._drain(local, step)
        except (CheckpointError, MemoryError, RuntimeError) as error:
            self._tell_undrained(error)
            return step is not None and local.passes_over(step, error)
        return False

    def _tell_undrained(self, error: Exception) -> None:
        if self._is_given_up:  # the next care drains
            return
        record(self._report, DrainFailed(reason=str(error)))
        self._report.notify(f"no newer checkpoint has drained to the run directory: {error}")

    def _tidy(self) -> None:
        if self.local is not None:
            now = time.monotonic()
            self._drain_if_due(self.local, now)
            self._tell_left(self.local.prune(now, self._generation))
        self._tell_left(self._pruned())

    def _make_room(self, needed: int, save: StagingName) -> None:
        try:
            with self.in_hand.making_room() as others:
                reasons = self._pruner.make_room(needed, save.generation, (save, *others))
        except CheckpointError as error:  # the directory is another job's now
            reasons = (str(error),)
        self._tell_left(reasons)

    def _tell_left(self, reasons: Iterable[str]) -> None:
        for reason in () if self._is_given_up else reasons:
            record(self._report, PruneFailed(reason=reason))
            if _SPACE in reason:  # the user has set a bound that does not hold
                self._report.notify(reason)

    def _pruned(self) -> tuple[str, ...]:
        """Remove what may go; return a reason for each name that is left."""
        try:
            left = self._pruner.prune()
            return left + self._store.clean_staging(self._generation)
        except CheckpointError as error:  # the directory is another job's now
            return (str(error),)


class StepsInHand:
    """Lets one thread at a time put a step, and none begin while room is made."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._saves: dict[int, StagingName] = {}
        self._is_making_room = False

    @contextlib.contextmanager
    def putting(self, save: StagingName) -> Iterator[None]:
        """Put a step in the block, once no other thread does so."""
        with self._changed:
            self._changed.wait_for(
                lambda: save.step not in self._saves and not self._is_making_room
            )
            self._saves[save.step] = save
        try:
            yield
        finally:
            with self._changed:
                del self._saves[save.step]
                self._changed.notify_all()

    @contextlib.contextmanager
    def making_room(self) -> Iterator[tuple[StagingName, ...]]:
        """Make room in the block; yields the saves in hand, whose staging has to stay."""
        with self._changed:
            self._is_making_room = True
            saves = tuple(self._saves.values())
        try:
            yield saves
        finally:
            with self._changed:
                self._is_making_room = False
                self._changed.notify_all()
