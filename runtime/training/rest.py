"""What a worker would save if it had to leave just now, in the middle of a step or of the script.

Between two commits the state does not change, so it is read when it is saved.  Code of the script
that runs after a commit may change all of it: weights, what callbacks remember, their files.  So
the state is held as it was before that code.  A run that resumes runs the code again, for the same
commit (`Due`).  Holding costs references only: TensorFlow writes into no buffer that is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.event import CheckpointCommitted, WorkerStopped
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.recovery.world import WorkerId
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.system.worker_status import HaltOrder, WorkerHalted
from holdfast.runtime.training.callback_host import Commit, Due
from holdfast.runtime.training.job_state import TrainingState
from holdfast.runtime.training.progress import Progress
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

_NO_STATE = -1


@dataclass(frozen=True, slots=True)
class _Before:
    """A state as it was before code of the script began to run after a commit."""

    cursor: Cursor
    state: Tensors
    fields: Mapping[str, object]
    words: str


class _Now(Enum):
    """What holds of the state at this moment."""

    NONE = "it is that of another worker, and not yet whole here"
    AS_SAVED = "nothing was committed since it was saved"
    LIVE = "it changes with the next commit"


class Rest:
    """What a training loop would save.  The loop calls all but ``card`` and ``save``."""

    def __init__(
        self,
        context: WorkerContext,
        state: TrainingState,
        progress: Progress,
        saver: Saver,
        records: LoopRecords,
        plan: WorkPlan,
        fields: Callable[..., dict[str, object]],
    ) -> None:
        self._context = context
        self._state = state
        self._progress = progress
        self._saver = saver
        self._records = records
        self._plan = plan
        self._fields = fields
        self._now = _Now.AS_SAVED
        self._before: _Before | None = None

    def hold(self, commit: Commit) -> None:
        """Hold the state as it is, before code of the script runs after ``commit``."""
        cursor = commit.cursor
        validation = commit.validation if commit.work is Work.EVALUATE else None
        state = {
            # Callbacks write into what they keep.
            name: np.array(value) if name.startswith(TrainingState.COMPANION) else value
            for name, value in self._state.tensors(cursor).items()
        }
        fields = Due(commit.work, validation).into(self._fields(is_complete=False))
        self._before = _Before(cursor, state, fields, _words_of(commit))

    def settle(self) -> None:
        """The code of the script has run, and all have agreed on what came of it."""
        self._now, self._before = _Now.LIVE, None

    def restored(self, *, is_saved: bool) -> None:
        """Another state was loaded, from a checkpoint or from another worker."""
        self._now, self._before = _Now.AS_SAVED if is_saved else _Now.NONE, None

    def describe_held(self, worker: WorkerId) -> WorkerHalted:
        """Return what there is to save."""
        before, cursor = self._before, self._progress.cursor
        if before is not None:
            cursor = before.cursor
        is_known = before is not None or self._now is not _Now.NONE
        is_saved = before is None and (self._now is not _Now.LIVE or self._saver.has(cursor))
        return WorkerHalted(
            worker,
            version=cursor.version if is_known else _NO_STATE,
            is_settled=before is None,
            saves=self._context.saves.newest,
            is_saved=is_saved,
            step=cursor.step,
            words=self._words(cursor) if before is None else before.words,
        )

    def save(self, order: HaltOrder) -> str:
        """Save this worker's part and wait for the end; return why it failed, "" if it did not."""
        before, began = self._before, time.monotonic()
        if before is None:
            cursor = self._progress.cursor
            before = _Before(cursor, self._state.tensors(cursor), self._fields(), "")
        self._records.flush()  # the journal is never behind a checkpoint
        cursor, state, fields = before.cursor, before.state, before.fields
        failure = self._saver.save_halted(cursor.step, state, fields, order)
        if not failure and not order.part:
            worker, generation = self._context.config.worker, self._context.page.generation
            stopped = WorkerStopped(worker, cursor.step, generation=generation)
            self._context.journal.record(stopped)
            seconds = round(time.monotonic() - began, 6)
            self._context.report(CheckpointCommitted(worker, cursor.step, seconds))
        return failure

    def _words(self, cursor: Cursor) -> str:
        """Return what is done again when the run goes on from ``cursor``."""
        following = self._plan.next_work(cursor)
        again = ""
        if following is Work.EVALUATE:
            again = f"the validation of epoch {self._plan.epoch_of(cursor)} is done again"
        elif following is Work.TRAIN:
            again = f"step {cursor.step + 1}, which had begun, is done again"
        if self._now is _Now.LIVE and not self._saver.has(cursor):
            return again
        if cursor.step == 0:
            return "stopped before the first step was complete, so there was nothing to save"
        return f"stopped at step {cursor.step}, which was saved before" + (again and f"; {again}")


def _words_of(commit: Commit) -> str:
    if commit.has_ended_epoch:
        return f"the callbacks at the end of epoch {commit.epoch} are run again"
    return f"the callbacks after step {commit.cursor.step} are run again"
