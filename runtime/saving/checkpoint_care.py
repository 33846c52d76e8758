"""The care of old checkpoints after each commit: they are pruned, and now and then read again.

It belongs to the process that commits.  Every change of the store runs on the thread that
commits.  Only the reading of a scrub has a thread of its own, of the lowest priority: it
may take long, and nothing should wait for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.own_steps import OwnSteps
from holdfast.checkpoint.upkeep.read_marks import ReadMarks
from holdfast.checkpoint.upkeep.retention import Pruner, Retention
from holdfast.checkpoint.upkeep.scrub import Reading, Scrubber
from holdfast.runtime.saving.mending import Mender, mirrors
from holdfast.runtime.worker.context import WorkerContext

_LOWEST_PRIORITY = 19


class Upkeep:
    """Prunes and scrubs one store, and reports failures.

    Args:
        context: takes the reports, for the journal and the user.
        store: the checkpoints.
        retention: the rule which of them stay.
        submit: runs a call, soon, on the thread that commits.
    """

    def __init__(
        self,
        context: WorkerContext,
        store: CheckpointStore,
        retention: Retention,
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._context = context
        self._submit = submit
        self._store = store
        self._marks = ReadMarks()
        self._made_anew: set[int] = set()
        config = context.config
        self._steps = OwnSteps(store, config.run_id)
        self._pruner = Pruner(self._steps, retention, self._marks)
        mender = Mender(context, mirrors(context))
        self._scrubber = Scrubber(
            self._steps, self._marks, config.generation, config.options.scrub_every_s, mender.mend
        )
        self._reader: threading.Thread | None = None

    def committed(self, step: int, generation: int) -> None:
        """Prune, and begin to read an old step again if that is due; ``step`` is new."""
        now = time.monotonic()
        self._made_anew.add(step)
        self._marks.forget(step)
        self._steps.forget(step)
        for rejected in self._context.unsound - self._made_anew:
            if rejected not in self._marks:
                self._marks.mark_damaged(rejected)
        reasons = self._pruner.prune(now) + self._store.clean_staging(generation)
        for reason in reasons:
            self._context.journal.record("prune_failed", reason=reason)
        if self._scrubber.due(now) and (self._reader is None or not self._reader.is_alive()):
            self._begin_scrub(now)

    def _begin_scrub(self, now: float) -> None:
        step = self._scrubber.choose(now)
        if step is not None:
            self._reader = threading.Thread(
                target=self._read, args=(step,), name="holdfast-scrubber", daemon=True
            )
            self._reader.start()

    def _read(self, step: int) -> None:
        # On Linux a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        finding = self._scrubber.read(step)
        self._submit(lambda: self._conclude(finding))

    def _conclude(self, finding: Reading) -> None:
        failure = self._scrubber.conclude(finding, time.monotonic())
        if failure is None:
            self._context.journal.record("scrubbed", step=finding.step)
            return
        self._context.journal.record(
            "scrub_failed",
            step=failure.step,
            reason=failure.reason,
            moved_to=failure.moved_to,
            mended=failure.is_mended,
        )
        self._context.notify(str(failure))
