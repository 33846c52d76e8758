"""A worker that is told to stop leaves, also if its main thread hangs.

Theory.  The loop obeys an order to stop at its next step.  If that does not come in time, the agent
asks all workers to halt (`host.halting`).  A thread of each worker then takes the lock that the
main thread holds while it changes the state, and never gives it back.  So the state stays what it
is, although the main thread goes on in the script, in a library, or in MPI.  The thread tells the
agent what this worker holds, saves its part if it is told to, and ends the process.

Invariant: the main thread changes nothing that a halted worker would save, but while it is
`moving`.  What the script may change meanwhile is held as it was before (`training.job_state`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.system.signals import start_thread
from holdfast.runtime.system.worker_status import (
    HaltedSaveEnded,
    HaltOrder,
    OwnReport,
    WorkerHalted,
    WorkerLeaving,
    WorkerStatus,
)
from holdfast.runtime.worker.stacks import shortened

_LOOK_S = 0.02
_FLUSHED_WITHIN_S = 1.0


class Resting(Protocol):
    """What a worker holds while its main thread is busy otherwise."""

    def describe_held(self, worker: WorkerId) -> WorkerHalted:
        """Return what there is to save."""

    def save(self, order: HaltOrder) -> str:
        """Save this worker's part and wait for the end; return why it failed, "" if it did not."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to save; ``words`` say why."""

    words: str = "stopped before training had begun, so there was nothing to save"
    step: int = 0

    def describe_held(self, worker: WorkerId) -> WorkerHalted:
        """Return that no save is wanted."""
        return WorkerHalted(
            worker,
            version=-1,
            is_settled=True,
            saves=0,
            is_saved=True,
            step=self.step,
            words=self.words,
        )

    def save(self, order: HaltOrder) -> str:
        """Do nothing."""
        return ""


class Halt:
    """The lock on what a worker would save, and what that is at this moment."""

    def __init__(self) -> None:
        self.moving = threading.RLock()
        """Held by the main thread while it changes what ``resting`` would save."""
        self.resting: Resting = Nothing()


class HaltWatch:
    """Looks for the request to halt, and carries it out in a thread of its own.

    ``tell`` sends the agent a message of ``worker``.
    """

    def __init__(
        self, worker: WorkerId, page: WorkerStatus, halt: Halt, tell: Callable[[OwnReport], None]
    ) -> None:
        self._worker = worker
        self._page = page
        self._halt = halt
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="holdfast-halt", daemon=True)

    def poll(self) -> None:
        """Begin to halt, if that was asked for; it does not wait."""
        if self._page.is_halt_asked and self._thread.ident is None:
            with contextlib.suppress(OSError):  # none to spare just now: the next look tries again
                start_thread(self._thread)

    def _run(self) -> None:
        with self._halt.moving:  # to the end of the process
            resting, obeyed = self._halt.resting, 0
            self._tell(resting.describe_held(self._worker))
            while True:
                if self._page.halt_orders == obeyed:
                    time.sleep(_LOOK_S)
                    continue
                obeyed, order = self._page.halt_orders, self._page.halt_order
                if not order.attempt:
                    self._leave()
                    return
                try:
                    failure = resting.save(order)
                except Exception as error:  # the state is the user's model, which may fail
                    failure = shortened(f"{type(error).__name__}: {error}")
                self._tell(HaltedSaveEnded(self._worker, order.attempt, failure))

    def _leave(self) -> None:
        """End the process; its main thread may hang, so nothing of the script is called."""
        for stream in (sys.stdout, sys.stderr):  # a thread that hangs in print may hold its lock
            flushing = threading.Thread(target=stream.flush, daemon=True)
            flushing.start()
            flushing.join(_FLUSHED_WITHIN_S)
        with contextlib.suppress(OSError):
            self._tell(WorkerLeaving(self._worker))
        os._exit(int(ExitCode.DONE))
