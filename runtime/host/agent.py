"""The process that hosts a job's workers, outside MPI: ``python -m holdfast.runtime.host``.

It listens at ``agent.sock`` in its directory for one supervisor and any number
of guards.  It outlives MPI jobs and even the supervisor: losing the supervisor
stops nothing, since workers and guards need only the agent.  If the agent itself dies,
the kernel kills its workers (``PR_SET_PDEATHSIG``) and the guards see their connections
close.  An agent that has lost its supervisor removes its directory at the end, because no
other process would.

It imports no MPI, TensorFlow, NumPy or HDF5; its pool does.

Its helpers may be stopped (SIGSTOP).  A stop that ends within the heartbeat timeout costs nothing.
Beyond it nobody comes back: a SIGKILL ends a stopped process, too.

| stopped | and this follows |
|---|---|
| a guard | the death of its worker |
| mpiexec | the end of its launch; the job is relaunched |
| the pool, the writer | another one is started; no worker dies |
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.recovery.detector import PauseWatch
from holdfast.recovery.launch import LaunchLimits
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink, HostedWorker
from holdfast.runtime.host.limits import HostLimits, HostWatch
from holdfast.runtime.host.mpi_host import MpiHost
from holdfast.runtime.host.orders import Orders
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.host.pool_process import PoolStart
from holdfast.runtime.host.supervisor_link import (
    SOCKET_NAME,
    StandingStill,
    SupervisorLink,
    kill_standing_parent,
)
from holdfast.runtime.host.worker_host import WorkerHost
from holdfast.runtime.system.channel import FDS, Channel, Listener, Message
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS, unblock
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import RequestFlag, pulse_interval_s

_SAME_SIGNAL_WITHIN_S = 1.0
"""A scheduler that signals a process, and then its group, has asked once."""
_FIRST_SUPERVISOR_WITHIN_S = 60.0
_IDLE_LOOK_S = 1.0
_INQUIRING_LOOK_S = 0.01
"""A worker that was found silent is killed as soon as its stacks are known."""
_OUTPUT_ENDS_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings that the agent gets at its start."""

    directory: Path
    heartbeat_timeout_s: float
    pool: PoolStart
    parent: int
    lease: int | None = None
    verbose: bool = False
    ready_fd: int | None = None


@dataclass(slots=True)
class _Visitor:
    """A connection; its handlers change once it has introduced itself."""

    on_message: Callable[[Message], None]
    on_end: Callable[[], None]

    def hear(self, message: Message) -> None:
        """Handle a message in the visitor's present role."""
        self.on_message(message)

    def end(self) -> None:
        """Handle the end of the connection in the visitor's present role."""
        self.on_end()


class Agent:
    """The agent's loop: its connections, its looks, and its own end."""

    def __init__(self, settings: AgentSettings) -> None:
        self._look_s = pulse_interval_s(settings.heartbeat_timeout_s)
        self._pauses = PauseWatch(self._look_s)
        self._reactor = Reactor()
        self._output = OutputForwarder(verbose=settings.verbose)
        self._directory = settings.directory
        self._supervisor = SupervisorLink(settings.heartbeat_timeout_s)
        self._stop_asked_at: float | None = None
        self._dropped_told = 0
        self._waits_since = witnessed_s()
        self._parent = settings.parent
        self._expects_supervisor_until = witnessed_s() + _FIRST_SUPERVISOR_WITHIN_S
        self._exit_code: ExitCode | None = None
        self._listener = Listener(settings.directory / SOCKET_NAME)
        self._reactor.watch(self._listener, self._accept)
        limits = HostLimits(settings.directory)
        self._watch = HostWatch(
            limits, self._supervisor.tell, lambda: self._host.ask_all(RequestFlag.SAVE)
        )
        self._host = WorkerHost(
            self._reactor,
            self._output,
            self._watch.pass_on,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            pool=settings.pool,
        )
        self._mpi = MpiHost(self._reactor, self._supervisor.tell, settings.directory)
        self._helpers = _HelperWatch(self._host, self._mpi, settings.heartbeat_timeout_s)
        self._orders = Orders(
            self._host, self._mpi, self._supervisor, self._watch, self._listener.path
        )
        if settings.lease is not None:
            self._orders.hold_lease(settings.lease)
        if settings.ready_fd is not None:
            self._say_ready(settings.ready_fd)

    def run(self) -> ExitCode:
        """Serve until told to end, or until no process needs this agent; return the exit code."""
        looked_at = witnessed_s()
        while self._exit_code is None:
            pause_s = self._pause_s
            self._reactor.run_once(max(0.0, looked_at + pause_s - witnessed_s()))
            now = witnessed_s()
            self._tell_pause()
            self._mpi.poll(now, self._host.state)
            if now - looked_at >= pause_s:
                looked_at = now
                self._host.poll(now, self._mpi.pid)
                self._helpers.poll(now)
                self._watch.poll(now, self._host.workers)
                self._supervisor.poll(now)
                self._tell_dropped()
                self._end_if_not_needed(now)
        return self._exit_code

    def _tell_pause(self) -> None:
        """Tell that the whole job stood still until now, if it has."""
        counters = {hosted.worker: hosted.page.counter for hosted in self._host.workers}
        self._pauses = self._pauses.observe(counters, time.monotonic())
        pause = self._pauses.pause
        if pause is not None:
            self._supervisor.tell({"kind": "paused", "began": pause.began, "ended": pause.ended})

    @property
    def _pause_s(self) -> float:
        """Seconds from one look to the next."""
        if self._host.is_inquiring:
            return min(_INQUIRING_LOOK_S, self._look_s)
        return _IDLE_LOOK_S if self._host.is_idle else self._look_s

    def close(self) -> None:
        """Kill the workers, wait for them, and leave nothing behind."""
        self._host.close()
        self._mpi.close()
        if not self.has_supervisor and self._orders.lease is not None:
            self._orders.lease.end()
        self._listener.close()
        self._output.close(_OUTPUT_ENDS_WITHIN_S)
        self._tell_dropped()
        self._supervisor.detach()
        self._reactor.close()

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor is connected, which will clean up."""
        return self._supervisor.channel is not None

    def take_signals(self) -> None:
        """Let SIGTERM ask for the end of the job; the other signals are the supervisor's."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        self._reactor.watch(wake_read, lambda: self._on_signals(os.read(wake_read, 64)))
        for number in SENT_BY_BATCH_SYSTEMS:
            signal.signal(number, lambda *_: None)
        unblock()

    def _on_signals(self, numbers: bytes) -> None:
        """Ask workers to stop with a checkpoint at the first SIGTERM; end at the second.

        A supervisor that listens decides: it may have had the same signal.
        """
        if signal.SIGTERM not in numbers:
            return
        now = witnessed_s()
        if self._supervisor.is_present:
            self._supervisor.tell({"kind": "signalled", "signal": "SIGTERM"})
        elif self._stop_asked_at is None and self._host.state.had_guards:
            self._stop_asked_at = now
            self._host.stop_all()
        elif self._stop_asked_at is None or now - self._stop_asked_at > _SAME_SIGNAL_WITHIN_S:
            self._end(ExitCode.TERMINATED)

    def _say_ready(self, fd: int) -> None:
        try:
            os.write(fd, b"ready\n")
        except BrokenPipeError:
            self._end(ExitCode.DONE)  # the starter of this agent is gone already
        os.close(fd)

    def _accept(self) -> None:
        channel = self._listener.accept()
        if channel is None:
            return
        visitor = _Visitor(
            lambda message: self._introduce(channel, visitor, message), channel.close
        )
        self._reactor.watch_channel(channel, visitor.hear, visitor.end)

    def _introduce(self, channel: Channel, visitor: _Visitor, message: Message) -> None:
        kind = message.get("kind")
        if kind == "supervisor":
            self._take_supervisor(channel, visitor, message)
        elif kind == "guard":
            self._reactor.forget(channel)
            self._take_guard(channel, message)
        elif kind == "status":  # it may ask again, and goes when it likes
            channel.post(self._status())
        else:
            self._reactor.forget(channel)
            channel.close()

    def _status(self) -> Message:
        """Return how the job stands, for anyone of the same user; asking changes nothing."""
        return {
            "kind": "status",
            "now": time.monotonic(),
            "supervisor": self._supervisor.pid if self._supervisor.is_present else None,
            "launch": self._supervisor.log.summary,
            **self._host.describe(),
        }

    def _take_guard(self, channel: Channel, message: Message) -> None:
        try:
            hello = GuardHello.of(message)
        except (KeyError, TypeError, ValueError):
            channel.close()
            return
        process = HeldProcess.of_peer(channel)
        if process is None:
            channel.close()
            hello.close()
        else:
            self._host.take_guard(GuardLink(channel, process), hello)

    def _take_supervisor(self, channel: Channel, visitor: _Visitor, message: Message) -> None:
        """Serve a supervisor from now on, unless it would replace one that is well."""
        takes_over = bool(message.get("takes_over"))
        refusal = self._refusal(message.get("job")) if takes_over else None
        if refusal is not None:
            for fd in message.get(FDS, ()):
                os.close(fd)
            channel.post(refusal)
            self._reactor.forget(channel)
            channel.close()
            return
        visitor.on_message = self._hear_supervisor
        visitor.on_end = lambda: self._lose_supervisor(channel)
        self._reactor.prefer(channel)  # a launch is known before its guards arrive
        if self._supervisor.channel is not None:
            self._reactor.forget(self._supervisor.channel)
            self._supervisor.depose(channel)
        self._speak_to(message.get(FDS, ()))
        self._greet(channel, takes_over=takes_over)

    def _refusal(self, job: list[Any] | None) -> Message | None:
        """Return why nobody may take over for ``job``: whether it is fresh, script and argv."""
        if self._supervisor.is_present:
            return {"kind": "supervised", "pid": self._supervisor.pid}
        launch = self._supervisor.log.launch
        if job is None or launch is None:
            return None
        options = launch["config"]["options"]
        own = [False, options["script"], *options["argv"]]
        return None if job == own else {"kind": "another_job", "job": own}

    def _greet(self, channel: Channel, *, takes_over: bool) -> None:
        greeting: Message = {"kind": "agent_ready", "warm": self._host.is_warm}
        if not takes_over:
            self._supervisor.attach(channel, greeting)
            return
        greeting |= {
            "launch": self._supervisor.log.launch,
            "told": self._supervisor.repeat(),
            "directory": str(self._directory),
            "cwd": os.getcwd(),
            "environment": dict(os.environ),
        }
        lease = self._orders.lease
        self._supervisor.attach(channel, greeting, () if lease is None else (lease.fileno(),))

    def _speak_to(self, fds: Sequence[int]) -> None:
        """Let the workers' output go to the stdout and stderr of a new supervisor."""
        for number, fd in enumerate(fds, start=1):
            if number <= 2:
                os.dup2(fd, number)
            os.close(fd)
        if fds:
            self._output.redirect()

    def _lose_supervisor(self, channel: Channel) -> None:
        self._expects_supervisor_until = witnessed_s()
        if self._supervisor.channel is channel:
            self._supervisor.detach()

    def _hear_supervisor(self, message: Message) -> None:
        self._supervisor.heard()
        if message.get("kind") == "shutdown":
            self._end(ExitCode.DONE)
        else:
            self._orders.obey(message)

    def _tell_dropped(self) -> None:
        dropped = self._output.dropped
        if dropped != self._dropped_told:
            self._dropped_told = dropped
            self._supervisor.tell({"kind": "output_dropped", "lines": dropped})

    def _end_if_not_needed(self, now: float) -> None:
        if self._host.is_helpless:
            self._end(ExitCode.RECOVERY_IMPOSSIBLE)
        if self._supervisor.is_present or self._host.state.had_guards:
            self._waits_since = now
        elif now - self._waits_since > LaunchLimits().join_s:
            self._end(ExitCode.RECOVERY_IMPOSSIBLE)  # mpiexec starts none, and nobody else looks
        may_still_come = now < self._expects_supervisor_until and os.getppid() == self._parent
        if self._supervisor.channel is None and not may_still_come and self._host.is_idle:
            kill_standing_parent(self._parent)
            self._end(ExitCode.DONE)

    def _end(self, exit_code: ExitCode) -> None:
        self._exit_code = exit_code


class _HelperWatch:
    """Looks at the processes around the workers, and ends those that stand still."""

    def __init__(self, host: WorkerHost, mpi: MpiHost, limit_s: float) -> None:
        self._host = host
        self._mpi = mpi
        self._still = StandingStill(limit_s)

    def poll(self, now: float) -> None:
        """Look once; a helper that has been stopped for longer than the limit is killed."""
        ends = self._ends()
        for pid, seconds in self._still.poll(ends, now).items():
            ends[pid](f"stopped for {seconds:.1f} s")

    def _ends(self) -> dict[int, Callable[[str], None]]:
        """Return the way to end each helper that runs, by its process id."""
        ends: dict[int | None, Callable[[str], None]] = {
            self._mpi.pid: self._end_launch,
            self._host.pool.pid: self._host.pool.replace,
            self._host.writer.pid: self._host.writer.replace,
        }
        for hosted in self._host.workers:
            if hosted.guard is not None:
                ends[hosted.guard.pid] = partial(self._end_worker, hosted)
        return {pid: end for pid, end in ends.items() if pid is not None}

    def _end_launch(self, why: str) -> None:
        self._host.kill_all(f"mpiexec {why}")
        self._mpi.kill()

    @staticmethod
    def _end_worker(hosted: HostedWorker, why: str) -> None:
        hosted.kill(f"guard {why}")
