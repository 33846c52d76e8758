"""One worker as its agent sees it: process, guard, channel and status.

A guard kills itself when its connection ends without a word of peace.  A guard that was
stopped cannot, and mpiexec would never tell the survivors.  So the agent kills it as well.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.recovery.detector import HeartbeatView
from holdfast.recovery.world import WorkerId
from holdfast.runtime.evidence.stacks import Stacks
from holdfast.runtime.host.output import Forwarded
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.channel import FDS, Channel, Message, pair
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.processes import (
    HeldProcess,
    describe_status,
    hangs_in_kernel,
    kill_group,
    last_core,
)
from holdfast.runtime.system.worker_status import WorkerStatus


class GuardLink:
    """One guard; ``process`` is None in tests of connections alone."""

    def __init__(self, channel: Channel, process: HeldProcess | None) -> None:
        self.channel = channel
        self._process = process

    @property
    def pid(self) -> int | None:
        """The process id of the guard."""
        return None if self._process is None else self._process.pid

    def release(self) -> None:
        """Let the guard end in peace: its worker has left."""
        self.channel.post({"kind": "worker_ended", "clean": True})

    def kill(self) -> None:
        """SIGKILL the guard, so that MPI tells the survivors of its worker's death."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Close the connection and the hold on the process."""
        self.channel.close()
        if self._process is not None:
            self._process.close()
            self._process = None


@dataclass(frozen=True, slots=True)
class GuardHello:
    """The message of a guard that connects."""

    rank: int
    generation: int
    directory: str
    environment: dict[str, str]
    connections: tuple[int, ...] = ()
    """The rank's descriptor to its launcher, under launchers that hand one over."""

    @staticmethod
    def of(message: Message) -> GuardHello:
        """Return the contents of a ``guard`` message; raises ``KeyError`` if it is incomplete."""
        return GuardHello(
            rank=int(message["rank"]),
            generation=int(message["generation"]),
            directory=str(message["cwd"]),
            environment=dict(message["env"]),
            connections=tuple(message.get(FDS, ())),
        )

    def close(self) -> None:
        """Close the descriptors of a guard that is turned away."""
        for descriptor in self.connections:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class HostedLaunch:
    """One MPI job: what every worker is told, and what its environment has on top."""

    config: WorkerConfig
    environment: dict[str, str]

    @staticmethod
    def of(message: Message) -> HostedLaunch:
        """Return the contents of a ``launch`` message.

        Raises ``KeyError``, ``TypeError`` or ``ValueError`` if it is incomplete.
        """
        return HostedLaunch(
            from_plain(WorkerConfig, message["config"]), dict(message.get("env", {}))
        )

    @property
    def generation(self) -> int:
        """The generation of the launch's first world."""
        return self.config.generation

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Worker ids in rank order."""
        return self.config.workers

    def config_of(self, worker: WorkerId) -> WorkerConfig:
        """Return the configuration of ``worker``."""
        return dataclasses.replace(self.config, worker=worker)


class HostedWorker:
    """The agent's record of a worker, from the launch's announcement to its end.

    Two things must come before it runs, in any order: its process and its guard.
    """

    def __init__(self, worker: WorkerId, launch: HostedLaunch) -> None:
        self.worker = worker
        self.generation = launch.generation
        self.guard: GuardLink | None = None
        self.page = WorkerStatus.create()
        self.page.generation = launch.generation
        self.control, self._their_control = pair()
        self.stdout_fd, self._their_stdout = os.pipe()
        self.stderr_fd, self._their_stderr = os.pipe()
        self.pid: int | None = None
        self.end_fd: int | None = None
        self._connections: tuple[int, ...] = ()
        self.trainings = 0
        """How many trainings its script has begun."""
        self.served = 0
        """How often the host's writer, which may mend for it, has told of its disk."""
        self.is_at_end = False
        self.may_leave = False
        """Whether it was told that the scripts of all have come to their end: nothing is left."""
        self.has_left = False
        self.limit: str | None = None
        """The limit that it was killed for, None for any other death."""
        self.failure = ""
        """The error that has ended its training, if one has and its script goes on."""
        self.halted: Message | None = None
        """What it holds, once it has halted."""
        self.halt_failure: str | None = None
        """Why its part of the last save has failed, "" if it has not, None while it is not over."""
        self.stacks = Stacks()
        self.place = ""
        """Where it was when it had not come on for long, in the script's code if it can be told."""
        self.said: Forwarded | None = None
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
    def view(self) -> HeartbeatView:
        """The status at this moment."""
        return HeartbeatView(self.page.counter, self.page.phase)

    @property
    def is_condemned(self) -> bool:
        """Whether it was killed, or will be killed as soon as it exists."""
        return self._why_killed is not None

    @property
    def is_running(self) -> bool:
        """Whether it has both its process and its guard."""
        return self.pid is not None and self.guard is not None

    @property
    def occupies_a_rank(self) -> bool:
        """Whether mpiexec has a rank for it that runs, or will as soon as the pool has forked."""
        will_never_run = self.is_condemned and self.pid is None
        return self.guard is not None and not will_never_run

    def join_guard(self, guard: GuardLink, hello: GuardHello, environment: dict[str, str]) -> None:
        """Tie the worker to its guard and let it begin, as soon as it has a process."""
        self.guard = guard
        self._connections = hello.connections  # open until the message has left
        begin = {"kind": "begin", "env": environment | hello.environment, "cwd": hello.directory}
        self.control.post(begin, hello.connections)

    def join_process(self, pid: int) -> int:
        """Take note of the process; return a descriptor that is readable when it has ended."""
        self.end_fd = os.pidfd_open(pid)
        self.pid = pid
        self._close_their_ends()
        if self._why_killed is not None:
            self.kill(self._why_killed)
        return self.end_fd

    def note(self, report: Message) -> bool:
        """Keep a report of the worker's script that concerns the agent alone; True if it is one."""
        match report.get("kind"):
            case "training":
                self.trainings = int(report["number"])
            case "at_end":
                self.is_at_end = True
            case "training_failed":
                self.failure = str(report["error"])
            case "halted":
                self.halted = report
            case "halt_done":
                if report["attempt"] == self.page.halt_order.attempt:
                    self.halt_failure = str(report["failure"])
            case _:
                return False
        return True

    def answer(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send the worker an answer, if it still has its channel."""
        if not self.control.is_closed:
            self.control.post(message, fds)

    def kill(self, why: str) -> None:
        """SIGKILL the worker, its helpers and its guard; the first reason given is kept.

        A process with a pending SIGKILL runs no more code of its own, even if it hangs in
        the kernel and does not end.  So MPI may hear of the death at once.
        """
        if self._why_killed is None:
            self._why_killed = why
        if self.pid is not None:
            kill_group(self.pid)
        if self.guard is not None:
            self.guard.kill()

    def fence(self, limit: str, seconds: float) -> None:
        """Kill the worker because it has stood still for longer than a limit."""
        self.limit = limit
        how = {
            "heartbeat": "of silence",
            "stall": "at one piece of work",
            "failed": f"in its script, which has caught the error of its training: {self.failure}",
        }
        self.kill(f"fenced after {seconds:.2f} s {how[limit]}")

    @property
    def samples(self) -> Message | None:
        """The microbatch that it computes, or computed when it died, with its samples."""
        work = self.page.work
        return None if work is None else dataclasses.asdict(work)

    def write_off(self) -> Message:
        """Return the ``worker_exited`` event of a process that was killed but does not end."""
        hangs = self.pid is not None and hangs_in_kernel(self.pid)
        where = " in a system call that does not return" if hangs else ""
        self.limit = self.limit or "unkillable"
        cause = f"{self._why_killed}; process {self.pid} does not end{where}"
        return self.exit_event(-signal.SIGKILL, cause)

    def reap(self) -> Message:
        """Wait for the ended process and return the ``worker_exited`` event without its time."""
        assert self.pid is not None
        self._core = last_core(self.pid)
        kill_group(self.pid)  # helpers that it left behind; its number is still its own
        _, wait_status, used = os.wait4(self.pid, 0)
        status = os.waitstatus_to_exitcode(wait_status)
        peak_bytes = 1024 * used.ru_maxrss  # getrusage(2): in KiB
        return {**self.exit_event(status, self._cause(status)), "peak_bytes": peak_bytes}

    def exit_event(self, status: int, cause: str) -> Message:
        """Return the event of the worker's end: status, cause, step and phase."""
        return {
            "kind": "worker_exited",
            "worker": self.worker,
            "status": status,
            "cause": cause,
            "clean": (self.has_left and status == 0) or self.limit == "leaving",
            "fenced": self._is_fenced,
            "step": self.page.step,
            "phase": self.page.phase.label,
            "generation": self.generation,
        } | self._evidence()

    def _evidence(self) -> Message:
        """Return what is known of the death beside its cause."""
        return {
            "limit": self.limit,
            "collateral": self._why_killed is not None and not self._is_fenced,
            "core": self._core,
            "stderr": [] if self.said is None else list(self.said.last_lines()),
            "stacks": str(self.stacks),
            "samples": self.samples,
        }

    @property
    def _is_fenced(self) -> bool:
        return self.limit in ("heartbeat", "stall", "failed")

    def close(self) -> None:
        """Close everything but stdout and stderr, which belong to the output forwarder."""
        self.is_buried = True
        self._close_their_ends()
        self.control.close()
        self.page.close()
        if self.guard is not None:
            self.guard.close()
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
