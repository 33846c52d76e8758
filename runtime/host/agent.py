"""The process that hosts a job's workers, outside MPI: ``python -m holdfast.runtime.host``.

It listens at ``agent.sock`` in its directory for guards and for questions how the job stands.
It outlives MPI jobs.  What is done is decided by its *superior* (`superior`): on the first
host of a job that is the head, in this same process.  If the agent dies, the kernel kills
its workers (``PR_SET_PDEATHSIG``) and the guards see their connections close.

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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.recovery.detector import PauseWatch
from holdfast.recovery.launch import LaunchLimits
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink, HostedWorker
from holdfast.runtime.host.limits import HostLimits, HostWatch
from holdfast.runtime.host.mpi_host import MpiHost
from holdfast.runtime.host.orders import Orders
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.host.pool_process import PoolStart
from holdfast.runtime.host.streams import Streams
from holdfast.runtime.host.superior import (
    SOCKET_NAME,
    RemoteSuperior,
    StoppedProcesses,
    Superior,
    Visitor,
)
from holdfast.runtime.host.worker_host import WorkerHost
from holdfast.runtime.system.channel import Channel, Listener, Message
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS, unblock
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import RequestFlag, pulse_interval_s

_IDLE_POLL_S = 1.0
_INQUIRING_POLL_S = 0.01
"""A worker that was found silent is killed as soon as its stacks are known."""
_OUTPUT_ENDS_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings that an agent gets at its start."""

    directory: Path
    heartbeat_timeout_s: float
    pool: PoolStart
    parent: int
    lease: int | None = None
    """The descriptor of the run directory's lease, which a head gets with its start."""
    verbose: bool = False
    ready_fd: int | None = None


class Agent:
    """The agent's loop: its connections, its polls, and its own end.

    Args:
        settings: those of its start.
        superior: makes who decides, of the agent itself; None for one at another end of a
            connection.
    """

    def __init__(
        self, settings: AgentSettings, superior: Callable[[Agent], Superior] | None = None
    ) -> None:
        self.settings = settings
        self.reactor = Reactor()
        self.streams = Streams()
        self._poll_s = pulse_interval_s(settings.heartbeat_timeout_s)
        self._pauses = PauseWatch(self._poll_s)
        self._output = OutputForwarder(self.streams, verbose=settings.verbose)
        self._dropped_told = 0
        self._waits_since = witnessed_s()
        self._exit_code: ExitCode | None = None
        self._listener = Listener(settings.directory / SOCKET_NAME)
        self.reactor.watch(self._listener, self._accept)
        self._superior: Superior = (superior or _remote_superior)(self)
        limits = HostLimits(settings.directory)
        self._watch = HostWatch(
            limits, self._superior.tell, lambda: self.host.ask_all(RequestFlag.SAVE)
        )
        self.host = WorkerHost(
            self.reactor,
            self._output,
            self._watch.pass_on,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            pool=settings.pool,
            on_files=self._superior.on_files,
        )
        self._mpi = MpiHost(self.reactor, self._superior.tell, settings.directory)
        self._helpers = _HelperWatch(self.host, self._mpi, settings.heartbeat_timeout_s)
        self._orders = Orders(self.host, self._mpi, self._superior.tell, self._watch, self.socket)
        if settings.ready_fd is not None:
            self._say_ready(settings.ready_fd)

    @property
    def socket(self) -> Path:
        """Where this agent listens."""
        return self._listener.path

    @property
    def output(self) -> OutputForwarder:
        """What shows the output of workers, and of other hosts."""
        return self._output

    def obey(self, message: Message) -> None:
        """Carry out an order of the superior."""
        self._orders.obey(message)

    def run(self) -> ExitCode:
        """Serve until no process needs this agent; return the exit code."""
        polled_at = witnessed_s()
        while self._exit_code is None:
            pause_s = self._pause_s
            self.reactor.run_once(max(0.0, polled_at + pause_s - witnessed_s()))
            now = witnessed_s()
            self.host.push()
            self._tell_pause()
            self._mpi.poll(now, self.host.state)
            if now - polled_at >= pause_s:
                polled_at = now
                self.host.poll(now, self._mpi.pid)
                self._helpers.poll(now)
                self._watch.poll(now, self.host.workers)
                self._tell_dropped()
            self._exit_code = self._superior.poll(now, is_idle=self.host.is_idle)
            if self._exit_code is None:
                self._end_if_helpless(now)
        return self._exit_code

    def _tell_pause(self) -> None:
        """Tell that the whole job stood still until now, if it has."""
        counters = {hosted.worker: hosted.page.counter for hosted in self.host.workers}
        self._pauses = self._pauses.observe(counters, time.monotonic())
        pause = self._pauses.pause
        if pause is not None:
            self._superior.tell({"kind": "paused", "began": pause.began, "ended": pause.ended})

    @property
    def _pause_s(self) -> float:
        """Seconds from one poll to the next."""
        if self.host.is_inquiring:
            return min(_INQUIRING_POLL_S, self._poll_s)
        may_rest = self.host.is_idle and not self.host.has_other_hosts
        return _IDLE_POLL_S if may_rest else self._poll_s

    def close(self) -> None:
        """Kill the workers, wait for them, and leave nothing behind."""
        self._superior.finish()
        self.host.close()
        self._mpi.close()
        self._listener.close()
        self._output.close(_OUTPUT_ENDS_WITHIN_S)
        self._tell_dropped()
        self._superior.close()
        self.streams.close(_OUTPUT_ENDS_WITHIN_S)
        self.reactor.close()

    def take_signals(self) -> None:
        """Pass the signals that ask something of a job on to the superior."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        self.reactor.watch(wake_read, lambda: self._superior.take_signals(os.read(wake_read, 64)))
        for number in SENT_BY_BATCH_SYSTEMS:
            signal.signal(number, lambda *_: None)
        unblock()

    def _say_ready(self, fd: int) -> None:
        try:
            os.write(fd, b"ready\n")
        except BrokenPipeError:
            self._exit_code = ExitCode.DONE  # the starter of this agent is gone already
        os.close(fd)

    def _accept(self) -> None:
        channel = self._listener.accept()
        if channel is None:
            return
        visitor = Visitor(channel, lambda message: self._introduce(visitor, message), channel.close)
        self.reactor.watch_channel(channel, visitor.take, visitor.end)

    def _introduce(self, visitor: Visitor, message: Message) -> None:
        if message.get("kind") == "guard":
            self.reactor.forget(visitor.channel)
            self._take_guard(visitor.channel, message)
        elif message.get("kind") == "status":  # it may ask again, and goes when it likes
            found = {**self._superior.describe(), **self.host.describe()}
            visitor.channel.post({"kind": "status", "now": time.monotonic(), **found})
        else:
            self._superior.introduce(visitor, message)

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
            self.host.take_guard(GuardLink(channel, process), hello)

    def _tell_dropped(self) -> None:
        dropped = self.streams.dropped
        if dropped != self._dropped_told:
            self._dropped_told = dropped
            self._superior.tell({"kind": "output_dropped", "lines": dropped})

    def _end_if_helpless(self, now: float) -> None:
        """Give a launch up of which no worker can be made; without a superior this is the end."""
        if self.host.is_helpless:
            if self._superior.is_present:
                self.obey({"kind": "abandon", "reason": "no worker can be made"})
            else:
                self._exit_code = ExitCode.RECOVERY_IMPOSSIBLE
        if self._superior.is_present or self.host.state.had_guards:
            self._waits_since = now
        elif now - self._waits_since > LaunchLimits().join_s:
            self._exit_code = ExitCode.RECOVERY_IMPOSSIBLE


def _remote_superior(agent: Agent) -> Superior:
    settings = agent.settings
    return RemoteSuperior(agent.reactor, agent.obey, settings.heartbeat_timeout_s, settings.parent)


class _HelperWatch:
    """Looks at the processes around the workers, and ends those that stand still."""

    def __init__(self, host: WorkerHost, mpi: MpiHost, limit_s: float) -> None:
        self._host = host
        self._mpi = mpi
        self._stopped = StoppedProcesses(limit_s)

    def poll(self, now: float) -> None:
        """Poll once; a helper that has been stopped for longer than the limit is killed."""
        ends = self._ends()
        for pid, seconds in self._stopped.poll(ends, now).items():
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
