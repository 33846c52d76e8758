"""The process of a worker: how it is made and watched, what it is killed for, what its end tells.

A worker is silent while its counter stands still.  That is measured on its own host, by the
clock of this process: no network lies between.  Who stands still although its heart beats is
decided for all hosts at once, in `fencing`, which asks here for the stacks.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.recovery.detector import ChangeDetector
from holdfast.recovery.event import Event, WorkerExited
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import BeginLaunch, LetLeave, NameWorld
from holdfast.runtime.host.output import Forwarded
from holdfast.runtime.host.pool_process import LetBegin
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import WorkerFenced
from holdfast.runtime.saving.save_messages import HeldSave, UseMemory
from holdfast.runtime.system.channel import pair, to_message
from holdfast.runtime.system.processes import (
    describe_status,
    hangs_in_kernel,
    kill_group,
    last_core,
)
from holdfast.runtime.system.worker_status import Phase, WorkerStatus
from holdfast.runtime.worker.stacks import Inquiry, Stacks

STARTING_TIMEOUT_S = 60.0
"""A script may import or write for long; ``MPI_Init`` and HDF5 hold the interpreter's lock."""

_PATIENT = (
    *(Phase.STARTING, Phase.JOINING, Phase.CONCLUDING, Phase.FAILED, Phase.LEAVING),
    Phase.RESTORING,
)
"""In these phases a worker has at least that long."""


class WorkerProcess:
    """The process of a worker on this host, from the order to make it to its end."""

    def __init__(self, config: WorkerConfig) -> None:
        self.worker = config.worker
        self.generation = config.generation
        self.page = WorkerStatus.create()
        self.page.generation = config.generation
        self.control, self._their_control = pair()
        self.stdout_fd, self._their_stdout = os.pipe()
        self.stderr_fd, self._their_stderr = os.pipe()
        self.pid: int | None = None
        self.end_fd: int | None = None
        self._connections: tuple[int, ...] = ()
        self.has_left = False
        self.limit: str | None = None
        """The limit that it was killed for, None for any other death."""
        self.stacks = Stacks()
        """Those that belong to its death, if it is killed."""
        self.said: Forwarded | None = None
        self.printed: Forwarded | None = None
        """Its stderr, as far as it was forwarded; None before it has a process."""
        self.is_buried = False
        self._core: int | None = None
        self._why_killed: str | None = None

    @property
    def their_fds(self) -> tuple[int, int, int, int]:
        """The worker's ends: control, status, stdout and stderr."""
        return (
            self._their_control.fileno(),
            self.page.fd,
            self._their_stdout,
            self._their_stderr,
        )

    @property
    def is_condemned(self) -> bool:
        """Whether it was killed, or will be killed as soon as it exists."""
        return self._why_killed is not None

    def let_begin(self, message: LetBegin, connections: Sequence[int]) -> None:
        """Let the worker begin, as soon as it has a process; ``connections`` are its rank's."""
        self._connections = tuple(connections)  # open until the message has left
        self.control.post(to_message(message), connections)

    def join_process(self, pid: int) -> int:
        """Take note of the process; return a descriptor that is readable when it has ended."""
        self.end_fd = os.pidfd_open(pid)
        self.pid = pid
        self._close_their_ends()
        if self._why_killed is not None:
            self.kill(self._why_killed)
        return self.end_fd

    def answer(
        self,
        message: BeginLaunch | UseMemory | HeldSave | LetLeave | NameWorld,
        fds: Sequence[int] = (),
    ) -> None:
        """Send the worker what it waits for, if it still has its channel."""
        if not self.control.is_closed:
            self.control.post(to_message(message), fds)

    def kill(self, why: str, limit: str | None = None) -> None:
        """SIGKILL the worker and its helpers; the first reason given is kept.

        A process with a pending SIGKILL runs no more code of its own, even if it hangs in
        the kernel and does not end.  So MPI may hear of the death at once.
        """
        if self._why_killed is None:
            self._why_killed = why
        if limit is not None:
            self.limit = limit
        if self.pid is not None:
            kill_group(self.pid)

    def write_off(self) -> WorkerExited:
        """Return the end of a process that was killed but does not end."""
        hangs = self.pid is not None and hangs_in_kernel(self.pid)
        where = " in a system call that does not return" if hangs else ""
        self.limit = self.limit or "unkillable"
        cause = f"{self._why_killed}; process {self.pid} does not end{where}"
        return self.exit_event(-signal.SIGKILL, cause)

    def reap(self) -> WorkerExited:
        """Wait for the ended process, and return the event of its end."""
        assert self.pid is not None
        self._core = last_core(self.pid)
        kill_group(self.pid)  # helpers that it left behind; its number is still its own
        _, wait_status, used = os.wait4(self.pid, 0)
        status = os.waitstatus_to_exitcode(wait_status)
        peak_bytes = 1024 * used.ru_maxrss  # getrusage(2): in KiB
        event = self.exit_event(status, self._cause(status))
        return dataclasses.replace(event, peak_bytes=peak_bytes)

    def exit_event(self, status: int, cause: str) -> WorkerExited:
        """Return the event of the worker's end, with all that is known of it."""
        return WorkerExited(
            self.worker,
            cause,
            is_clean=(self.has_left and status == 0) or self.limit == "leaving",
            step=self.page.step,
            phase=self.page.phase.label,
            generation=self.generation,
            fenced=self._is_fenced,
            limit=self.limit,
            collateral=self._why_killed is not None and not self._is_fenced,
            core=self._core,
            stderr=() if self.said is None else tuple(self.said.last_lines()),
            stacks=str(self.stacks),
            samples=self.page.work,
        )

    @property
    def _is_fenced(self) -> bool:
        return self.limit in ("heartbeat", "stall", "failed")

    def close(self) -> None:
        """Close all but stdout and stderr, which are the output forwarder's, and the status."""
        self.is_buried = True
        self._close_their_ends()
        self.control.close()
        for descriptor in self._connections:
            os.close(descriptor)
        self._connections = ()
        if self.end_fd is not None:
            os.close(self.end_fd)
            self.end_fd = None

    def _cause(self, status: int) -> str:
        if self._why_killed is not None and status == -9:
            return self._why_killed
        if status == 0 and not self.has_left:
            return "exit 0 without leaving"
        return describe_status(status)

    def _close_their_ends(self) -> None:
        if self._their_stdout < 0:
            return
        self._their_control.close()
        os.close(self._their_stdout)
        os.close(self._their_stderr)
        self._their_stdout = self._their_stderr = -1


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
        self.answer_known()
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

    def forget(self) -> None:
        """Let go of the questions that are open: another launch begins."""
        self._questions = []

    def answer_known(self) -> None:
        """Answer the questions of which all is known that will be."""
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
