"""The process of a worker: how it is made, what it is killed for, and what its end tells."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence

from holdfast.recovery.event import WorkerExited
from holdfast.runtime.host.host_messages import LetLeave, NameWorld
from holdfast.runtime.host.output import Forwarded
from holdfast.runtime.host.pool_process import LetBegin
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.saving.save_messages import UseMemory
from holdfast.runtime.system.channel import pair
from holdfast.runtime.system.messages import to_message
from holdfast.runtime.system.processes import (
    describe_status,
    hangs_in_kernel,
    kill_group,
    last_core,
)
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker.stacks import Stacks


class WorkerProcess:
    """The process of a worker on this host, from the order to make it to its end."""

    def __init__(self, config: WorkerConfig) -> None:
        self.worker = config.worker
        self.generation = config.generation
        self.page = WorkerStatus.create()
        self.page.generation = config.generation
        self.ring = self.page.ring()
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

    def answer(self, message: UseMemory | LetLeave | NameWorld, fds: Sequence[int] = ()) -> None:
        """Send the worker an answer, if it still has its channel."""
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
