"""The agent of a job's first host: its workers and helpers, outside MPI.

It listens at ``agent.sock`` in its directory for guards, and for all who want something of the
head.  The head decides what is done, in this same process: it lets the agent have a `turn`, takes
the events that have come, and gives orders.  Both outlive MPI jobs.  If the process dies, the
kernel kills its workers (``PR_SET_PDEATHSIG``) and the guards see their connections close.

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

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from holdfast.recovery.detector import PauseWatch
from holdfast.recovery.event import (
    AbandonLaunch,
    AskToSave,
    AskToStop,
    DropPrepared,
    KillLaunch,
    LaunchEnded,
    PreparationFailed,
    Renew,
)
from holdfast.recovery.launch import KILLED_WITH_ITS_LAUNCH
from holdfast.runtime.host.host import Host, LocalHost
from holdfast.runtime.host.host_messages import LaunchOrder, News, Order
from holdfast.runtime.host.hosted_launch import HostedLaunch
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink, HostedWorker
from holdfast.runtime.host.limits import HostLimits
from holdfast.runtime.host.mpi_host import MpiHost
from holdfast.runtime.host.output import OutputForwarder, Streams
from holdfast.runtime.host.pool_process import PoolStart
from holdfast.runtime.run.events import Notice, OutputDropped, Paused
from holdfast.runtime.system.channel import FDS, Channel, Listener, Message, MessageKinds
from holdfast.runtime.system.codec import WrongValue
from holdfast.runtime.system.owned_directory import SOCKET_NAME, make_again
from holdfast.runtime.system.processes import HeldProcess, StoppedProcesses
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS, unblock
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import RequestFlag, pulse_interval_s

_HELLO: MessageKinds[GuardHello] = MessageKinds(GuardHello)
_IDLE_POLL_S = 1.0
_INQUIRING_POLL_S = 0.01
"""A worker that was found silent is killed as soon as its stacks are known."""
_OUTPUT_ENDS_WITHIN_S = 2.0
_LOOK_S, _LOOKS_PER_LIMIT = 2.5e-4, 4
"""The guards of thousands of workers are looked at as seldom as takes a twentieth of a core."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings that an agent gets at its start."""

    directory: Path
    heartbeat_timeout_s: float
    pool: PoolStart
    parent: int
    lease: int | None = None
    """The descriptor of the run directory's lease."""
    verbose: bool = False


@dataclass(slots=True)
class Visitor:
    """A connection to an agent; its handlers change once it has introduced itself."""

    channel: Channel
    on_message: Callable[[Message], None]
    on_end: Callable[[], None]

    def take(self, message: Message) -> None:
        """Handle a message in the visitor's present role."""
        self.on_message(message)

    def end(self) -> None:
        """Handle the end of the connection in the visitor's present role."""
        self.on_end()


class Agent:
    """The processes of this host, the connections to them, and what has happened to them.

    Args:
        settings: those of its start.
        introduce: serves a connection that is no guard's, with its first message.
        on_files: gets each writer's channel for the run directory.
    """

    def __init__(
        self,
        settings: AgentSettings,
        introduce: Callable[[Visitor, Message], None],
        on_files: Callable[[Channel], None],
    ) -> None:
        self.settings = settings
        self.events: deque[News] = deque()
        """What has happened, for the head, which handles it after a turn."""
        self.reactor = Reactor()
        self.streams = Streams()
        self._poll_s = pulse_interval_s(settings.heartbeat_timeout_s)
        self._pauses = PauseWatch(self._poll_s)
        self.output = OutputForwarder(self.streams.put, verbose=settings.verbose)
        """Shows the output of workers, and of other hosts."""
        self._dropped_told = 0
        self._polled_at = witnessed_s()
        self._introduce_to_head = introduce
        self._listener = self._listening()
        limit_s = settings.heartbeat_timeout_s
        own = LocalHost()
        self.launch = own.launch = HostedLaunch(
            self.reactor, self.tell, [own], heartbeat_timeout_s=limit_s
        )
        self.host = own.host = Host(
            self.reactor,
            self.output,
            own.tell,
            heartbeat_timeout_s=limit_s,
            pool=settings.pool,
            limits=HostLimits(settings.directory),
            on_files=on_files,
        )
        self._mpi = MpiHost(self.reactor, self.tell, settings.directory)
        self._stopped = StoppedProcesses(settings.heartbeat_timeout_s)
        self._stopped_due = 0.0
        self._has_launched = False

    @property
    def socket(self) -> Path:
        """Where this agent listens."""
        return self._listener.path

    def tell(self, event: News) -> None:
        """Keep an event, for the head to handle after this turn."""
        self.events.append(event)

    def obey(self, order: Order) -> None:
        """Carry out an order of the head."""
        self._keep_directory()
        match order:
            case LaunchOrder(config) if config.is_prepared:
                self._prepare(order)
            case LaunchOrder():
                self._begin(order)
            case DropPrepared():
                self.launch.prepared.drop("another launch is wanted")
                self._mpi.drop_prepared()
            case KillLaunch(_, is_urgent):
                self.launch.kill_all(KILLED_WITH_ITS_LAUNCH, is_urgent=is_urgent)
                self._mpi.kill()
            case AbandonLaunch(reason):  # its processes do not even end when they are killed
                self.launch.abandon(reason)
                self._mpi.abandon()
                if self._has_launched:
                    self.tell(LaunchEnded())
            case AskToSave():
                self.launch.ask_all(RequestFlag.SAVE)
            case AskToStop():
                self.launch.stop_all()
            case Renew():  # an order to stop would end the job
                self.launch.ask_all(RequestFlag.STOP)

    def _begin(self, order: LaunchOrder) -> None:
        """Let a launch begin; one that the system has nothing to spare for has ended."""
        ranks = len(order.config.workers)
        self._has_launched = True
        self.host.watch.begin(ranks)
        what = f"{ranks} workers cannot be made"
        try:
            try:
                self.launch.begin(order.config)
            except OSError:
                self.launch.kill_all("its launch cannot begin")
                raise
            if order.mpi is not None:
                what = f"{order.mpi.mpiexec} cannot be started"
                self._mpi.begin(order.config.generation, order.mpi, ranks, self.socket)
        except OSError as error:
            self.tell(LaunchEnded(f"mpiexec started no worker: {what}: {error}"))

    def _prepare(self, order: LaunchOrder) -> None:
        """Start a launch beside the one that trains, which goes on if that fails."""
        config, mpi = order.config, order.mpi
        assert mpi is not None
        try:
            self.launch.prepare(config)
            self._mpi.prepare(config.generation, mpi, len(config.workers), self.socket)
        except OSError as error:
            self.launch.prepared.drop("it cannot begin")
            self.tell(PreparationFailed(config.generation, str(error)))

    def turn(self) -> float:
        """Wait until something happens or is due, and see to it; return the time then."""
        if self.launch.is_helpless:
            self.obey(AbandonLaunch("no worker can be made"))
        pause_s = self._pause_s
        self.reactor.run_once(max(0.0, self._polled_at + pause_s - witnessed_s()))
        now = witnessed_s()
        self.launch.push()
        self._tell_pause()
        self._mpi.poll(now, self.launch.state)
        if now - self._polled_at >= pause_s:
            self._polled_at = now
            if why := self._mpi.why_none_prepared():
                self.launch.prepared.fail(why)
            self._keep_directory()
            self.host.poll(now, (self._mpi.pid, *self.launch.shells))
            self.launch.poll(now)
            self._end_stopped_helpers(now)
            self._tell_dropped()
        return now

    def _tell_pause(self) -> None:
        """Tell that the whole job stood still until now, if it has."""
        now = time.monotonic()
        if not self._pauses.is_look_due(now):
            return
        counters = {hosted.worker: hosted.page.counter for hosted in self.launch.workers}
        self._pauses = self._pauses.observe(counters, now)
        if self._pauses.pause_s:
            self.tell(Paused(round(self._pauses.pause_s, 6), until=now))

    @property
    def _pause_s(self) -> float:
        """Seconds from one poll to the next."""
        if self.launch.is_inquiring:
            return min(_INQUIRING_POLL_S, self._poll_s)
        may_rest = self.launch.is_idle and not self.launch.shells
        return _IDLE_POLL_S if may_rest else self._poll_s

    def close(self) -> None:
        """Kill the workers, wait for them, and leave nothing behind."""
        self.launch.close()
        self.host.close()
        self._mpi.close()
        self._listener.close()
        self.output.close(_OUTPUT_ENDS_WITHIN_S)
        self.streams.close(_OUTPUT_ENDS_WITHIN_S)
        self.reactor.close()

    def pass_signals(self, take: Callable[[bytes], None]) -> None:
        """Let ``take`` have the signals that ask something of a job."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        self.reactor.watch(wake_read, lambda: take(os.read(wake_read, 64)))
        for number in SENT_BY_BATCH_SYSTEMS:
            signal.signal(number, lambda *_: None)
        unblock()

    def _listening(self) -> Listener:
        listener = Listener(self.settings.directory / SOCKET_NAME)
        self.reactor.watch(listener, self._accept)
        return listener

    def _keep_directory(self) -> None:
        """Make the private directory and the socket again, if they were removed."""
        if self.socket.exists():
            return
        with contextlib.suppress(OSError):  # the next look tries again
            make_again(self.settings.directory)
            before, self._listener = self._listener, self._listening()
            self.reactor.forget(before)
            before.close(is_removed=False)
            self.tell(
                Notice(
                    f"the job's private directory {self.settings.directory} was removed, and was "
                    "made again; systemd removes it when the user logs out, unless `loginctl "
                    "enable-linger` was called"
                )
            )

    def _accept(self) -> None:
        channel = self._listener.accept()
        if channel is None:
            return
        visitor = Visitor(channel, lambda message: self._introduce(visitor, message), channel.close)
        self.reactor.watch_channel(channel, visitor.take, visitor.end)

    def _introduce(self, visitor: Visitor, message: Message) -> None:
        if message in _HELLO:
            self.reactor.forget(visitor.channel)
            self._take_guard(visitor.channel, message)
        else:
            self._introduce_to_head(visitor, message)

    def _take_guard(self, channel: Channel, message: Message) -> None:
        try:
            connections = tuple(message.get(FDS, ()))
            hello = replace(_HELLO.decode(message), connections=connections)
        except WrongValue:
            channel.close()
            return
        process = HeldProcess.of_peer(channel)
        if process is None:
            channel.close()
            hello.close()
        else:
            self.launch.take_guard(GuardLink(channel, process), hello)

    def _tell_dropped(self) -> None:
        dropped = self.streams.dropped
        if dropped != self._dropped_told:
            self._dropped_told = dropped
            self.tell(OutputDropped(dropped))

    def _end_stopped_helpers(self, now: float) -> None:
        """Kill each process around the workers that has been stopped for longer than the limit."""
        if now < self._stopped_due:
            return
        ends: dict[int | None, Callable[[str], None]] = {
            self._mpi.pid: self._end_launch,
            self.host.pool.pid: self.host.pool.replace,
            self.host.writer.pid: self.host.writer.replace,
        }
        for hosted in self.launch.workers:
            if hosted.guard is not None:
                ends[hosted.guard.pid] = partial(_end_worker, hosted)
        found = [pid for pid in ends if pid is not None]
        longest_s = self.settings.heartbeat_timeout_s / _LOOKS_PER_LIMIT
        self._stopped_due = now + min(longest_s, _LOOK_S * len(found))
        for pid, seconds in self._stopped.poll(found, now).items():
            ends[pid](f"stopped for {seconds:.1f} s")

    def _end_launch(self, why: str) -> None:
        self.launch.kill_all(f"mpiexec {why}")
        self._mpi.kill()


def _end_worker(hosted: HostedWorker, why: str) -> None:
    hosted.kill(f"guard {why}")
