"""The node-local level of checkpoints: every save goes there, and now and then one drains.

A run directory on a shared file system may take minutes for a save.  A disk of the node, or its
memory, takes milliseconds.  It survives the death of all processes, but not of the node.  So steps
drain to the run directory in the background, as a mend of a step that it lacks.  A job that has
resumed from a step of the local directory drains that one first.  A local directory that takes
nothing costs speed and no save: the run directory takes it then.  It belongs to one run directory,
and not to a copy of that (`find_run`).

Invariant: nothing is removed from the local directory but steps older than two that stay.  The two
newest saves of this job stay, though steps with larger numbers may come back with a disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointUnreadable,
    CommitRefused,
    StorageFailed,
)
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks
from holdfast.checkpoint.repair import Holders, mend_step
from holdfast.checkpoint.retention import FEWEST_KEPT, Pruner, Retention
from holdfast.checkpoint.scan import tell_difference
from holdfast.checkpoint.store import CheckpointStore, hide_steps
from holdfast.recovery.schedule import EverySeconds, EverySteps
from holdfast.runtime.run.find_run import another_home, claim, other_home
from holdfast.runtime.run.run_directory import make_durably

_PRIVATE = 0o700


class LocalLevel:
    """Drains the steps of a local store to a run's directory, and prunes the local store."""

    def __init__(
        self,
        directory: Path,
        drain_every: EverySteps | EverySeconds,
        run: CheckpointStore,
        run_id: str,
        fence: Callable[[], None] = lambda: None,
        unsound: Collection[int] = (),
    ) -> None:
        """Take the store of the ``run``, whose ``unsound`` steps are none to be behind of.

        ``fence`` is called before each rename and removal here, and raises if none may follow.
        """
        self._directory = directory
        self._drain_every = drain_every
        self._run_id = run_id
        self._unsound = frozenset(unsound)
        # A disk that comes back may have steps of a job before, with another state.
        files = LocalFileSystem(directory, fence)
        self.store = CheckpointStore(directory, files, run.key, first_stays=False)
        self._holders = Holders(run, self.store)
        retention = Retention(newest=FEWEST_KEPT)
        self._marks = ReadMarks()
        self._steps = OwnSteps(self.store, run_id)
        self._pruner = Pruner(self._steps, retention, self._marks)
        self._passed: set[int] = set()
        """Damaged steps of the jobs before: an older one drains."""
        self._mine: tuple[int, ...] = ()
        """The newest saves of this job that are here, oldest first."""
        self._staying = threading.Lock()
        self._taken: list[int] = []
        """Saves that are being put here, or are here and not taken note of yet."""
        self._saves = 0
        self._drained_at: float | None = None
        self.drained_step = -1
        """The newest step that this job has put into the run directory."""
        self._is_behind: bool | None = None
        """Whether the jobs before have left a step that has not drained; None until it is asked."""

    def make_directory(self) -> None:
        """Make the local directory if it is missing, and mark it as this run directory's.

        Raises:
            StorageFailed: it cannot be made.
            CommitRefused: it belongs to a copy of the run directory.
        """
        directory, run_dir = self._directory, self._holders.here.directory.parent
        try:
            other = other_home(directory, run_dir, self._run_id)
            if other is not None:
                raise CommitRefused(another_home(directory.parent, other, run_dir))
            make_durably(directory, _PRIVATE)
            claim(directory, run_dir)
        except OSError as error:
            raise StorageFailed("make directory", directory, error) from error

    def put_elsewhere(self, step: int) -> tuple[str, ...]:
        """Hide a step that a job before has left here: the run directory has this job's.

        Returns why it is still there.
        """
        reasons: list[str] = []
        with self._staying:
            if step not in (*self._mine, *self._taken):
                hide_steps(self.store.disk, self.store.directory, (step,), reasons)
        return tuple(reasons)

    @contextlib.contextmanager
    def taking(self, step: int) -> Iterator[None]:
        """Put a save here in the block; it stays, until note is taken of it.

        Another thread may prune at any time after it is there.
        """
        with self._staying:
            self._taken.append(step)
            self._pruner.protect((*self._mine, *self._taken))
        try:
            yield
        except BaseException:
            self._let_go(step)
            raise

    def committed(self, step: int, now: float) -> None:
        """Take note of a save; the first one starts the clock."""
        self._saves += 1
        self._mine = (*(mine for mine in self._mine if mine != step), step)[-FEWEST_KEPT:]
        self._let_go(step)
        self._marks.forget(step)
        self._steps.forget(step)
        if self._drained_at is None:
            self._drained_at = now

    def _let_go(self, step: int) -> None:
        with self._staying:
            if step in self._taken:  # not one that is here already, and is now in the run directory
                self._taken.remove(step)
            self._pruner.protect((*self._mine, *self._taken))

    def is_due(self, now: float) -> bool:
        """Return whether a step should drain now."""
        if self._is_behind is None:
            self._is_behind = not self._saves and self._has_newer()
        if self._is_behind:
            return True
        if isinstance(self._drain_every, EverySteps):
            return self._saves >= self._drain_every.steps
        since = now if self._drained_at is None else self._drained_at
        return self._saves > 0 and now - since >= self._drain_every.seconds

    def _has_newer(self) -> bool:
        """Whether there is a step that is newer than all of the run directory, as far as known."""
        try:
            there = [step for step in self._holders.here.steps() if step not in self._unsound]
            return max(self.store.steps(), default=-1) > max(there, default=-1)
        except CheckpointError:  # the first save tells of it
            return False

    def newest(self) -> int | None:
        """Return the newest save of this job, or of the jobs before; None without any.

        Raises ``CheckpointError`` if the steps cannot be listed.
        """
        if self._mine:
            return self._mine[-1]
        return max((s for s in self.store.steps() if s not in self._passed), default=None)

    def passes_over(self, step: int, error: Exception) -> bool:
        """Leave out a step of the jobs before that ``error`` tells is damaged; return whether.

        An older one may drain then.
        """
        is_damaged = isinstance(error, CheckpointError) and not isinstance(
            error, StorageFailed | CheckpointUnreadable | CommitRefused
        )
        if not is_damaged or step in self._mine:
            return False
        self._passed.add(step)
        return True

    def drain(self, step: int, now: float) -> None:
        """Make a step of the local store durable in the run directory, too.

        Raises ``CheckpointError`` if it cannot be; the next save tries with its own step.
        """
        if step != self.drained_step:
            result = mend_step(self._holders, step, run_id=self._run_id)
            if not result.faults:
                self._refuse_other_state(step)
        self.drained(step, now)

    def _refuse_other_state(self, step: int) -> None:
        """Refuse to take a step of the run directory for ours, if it has another state."""
        here, there = self._holders.here.scan(step), self.store.scan(step)
        difference = tell_difference(here, here.manifest(), there.manifest())
        if difference is not None:
            raise CommitRefused(difference)

    def take_removal(self) -> bool:
        """Return whether a drain has made the run's checkpoint directory again."""
        return self._holders.here.take_removal()

    def drained(self, step: int, now: float) -> None:
        """Take note that the run directory has a step; older ones need not drain any more."""
        self._saves, self._drained_at, self.drained_step = 0, now, step
        self._is_behind = False

    def prune(self, now: float, generation: int) -> tuple[str, ...]:
        """Keep the newest steps of the local store, and no staging of older generations.

        Returns reasons for what is left.
        """
        try:
            return self._pruner.prune() + self.store.clean_staging(generation)
        except CheckpointError as error:
            return (str(error),)
