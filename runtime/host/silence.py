"""Kills workers of this host that are silent, and finds out what workers do.

A worker is silent while its counter stands still.  That is measured on its own host, by the
clock of this process: no network lies between.  One that was found is killed within two seconds,
with or without its stacks (`worker.stacks`): a sign of life in between changes nothing.

Who stands still although its heart beats is decided for all hosts at once, in `fencing`.  That asks
here for the stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.recovery.detector import ChangeDetector
from holdfast.recovery.event import Event
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.worker_process import WorkerProcess
from holdfast.runtime.run.events import WorkerFenced
from holdfast.runtime.system.worker_status import Phase
from holdfast.runtime.worker.stacks import Inquiry

STARTING_TIMEOUT_S = 60.0
"""A script may import or write for long; ``MPI_Init`` and HDF5 hold the interpreter's lock."""

_PATIENT = (
    *(Phase.STARTING, Phase.JOINING, Phase.CONCLUDING, Phase.FAILED, Phase.LEAVING),
    Phase.RESTORING,
)
"""In these phases a worker has at least that long."""


@dataclass(slots=True)
class _Question:
    """A worker that is asked what it does, and what follows when that is known, or too late."""

    process: WorkerProcess
    inquiry: Inquiry
    conclude: Callable[[Inquiry], None]
    is_evidence: bool
    """Whether the answer belongs to the worker's death, if that follows."""

    def poll(self, now: float) -> bool:
        """Go on; return whether all is known that will be."""
        if self.process.is_buried:
            self.inquiry.is_over = True
        self.inquiry.poll(now)
        if self.is_evidence:
            self.process.stacks = self.inquiry.stacks
        return self.inquiry.is_over


class SilenceWatch:
    """Looks at the counters of this host's workers, and asks workers what they do."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        kill: Callable[[WorkerProcess, str, str], None],
        heartbeat_timeout_s: float,
    ) -> None:
        """Take the ways to tell an event, and to kill a worker for a reason and a limit."""
        self._tell = tell
        self._kill = kill
        self._silences: ChangeDetector[WorkerId] = ChangeDetector(heartbeat_timeout_s)
        self._starting_s = max(heartbeat_timeout_s, STARTING_TIMEOUT_S)
        self._questions: list[_Question] = []
        self._now = 0.0

    @property
    def is_inquiring(self) -> bool:
        """Whether a question is open, which will not be for long."""
        return bool(self._questions)

    @property
    def silent_s(self) -> Mapping[WorkerId, float]:
        """For how long the counter of each watched worker has stood still, in seconds."""
        return self._silences.seconds

    def poll(self, watched: Sequence[WorkerProcess], now: float) -> bool:
        """Look at the workers that live; return whether one is about to be killed."""
        self._now = now
        found = {process.worker: process for process in watched}
        views = {w: (p.page.counter, p.page.phase) for w, p in found.items()}
        self._silences = self._silences.observe(views, now)
        asked = {question.process.worker for question in self._questions}
        for worker, silent_s in self._silences.beyond.items():
            is_patient = views[worker][1] in _PATIENT and silent_s <= self._starting_s
            if not is_patient and worker not in asked:
                self.ask(found[worker], self._fence(found[worker], silent_s))
        is_inquiring = self.is_inquiring
        self._go_on()
        return is_inquiring

    def ask(
        self,
        process: WorkerProcess,
        conclude: Callable[[Inquiry], None],
        *,
        is_evidence: bool = True,
    ) -> None:
        """Find out what a worker does, and call ``conclude`` with that if it still lives then."""
        if process.pid is not None:
            inquiry = Inquiry(process.pid, process.page, self._now)
            self._questions.append(_Question(process, inquiry, conclude, is_evidence))

    def answer_at_once(self) -> None:
        """Answer the questions of whom there is nothing to wait for."""
        self._go_on()

    def forget(self) -> None:
        """Let go of the questions that are open: another launch begins."""
        self._questions = []

    def _go_on(self) -> None:
        over = [question for question in self._questions if question.poll(self._now)]
        self._questions = [question for question in self._questions if question not in over]
        for question in over:
            if not (question.process.is_buried or question.process.is_condemned):
                question.conclude(question.inquiry)

    def _fence(self, process: WorkerProcess, seconds: float) -> Callable[[Inquiry], None]:
        """Return what kills a worker that has been silent for so long."""

        def fence(inquiry: Inquiry) -> None:
            self._kill(process, f"fenced after {seconds:.2f} s of silence", "heartbeat")
            self._tell(
                WorkerFenced(
                    process.worker,
                    "heartbeat",
                    round(seconds, 3),
                    process.page.step,
                    inquiry.stacks.where,
                    process.page.work,
                    inquiry.stacks.is_reading,
                )
            )

        return fence
