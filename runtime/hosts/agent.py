"""The agent of a host that is not the head's: ``python -m holdfast.runtime.hosts.agent``.

A remote shell starts it.  Its stdin and stdout are the connection to the head (`wire`), so nothing
listens and no key is needed.  It first answers what the head asks of its host, if anything.  Once
it is greeted, it has the host part of the job: pool, workers, memory, writer.  The head decides
everything else, and all guards are there.

It ends when the connection ends, or when its lease runs out (`recovery.detector`): then the head
may go on without it, so its workers must be dead first.  The lease also stands in the status of
each worker, which ends itself without one: the agent may be stopped.  A process beside it, the
watchdog, kills an agent whose lease ended long ago, so that nothing stays on this host for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from holdfast.recovery.detector import HostLease
from holdfast.recovery.event import WorkerExited
from holdfast.recovery.world import WorkerId
from holdfast.runtime.batch.schedulers import bring_back
from holdfast.runtime.host.host import Host
from holdfast.runtime.host.host_messages import Down, Seen, Up
from holdfast.runtime.host.limits import HostLimits
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.host.pool_process import PoolProcess, PoolSettings, PoolStart
from holdfast.runtime.hosts import wire
from holdfast.runtime.hosts.wire import ANSWERS_WITHIN_S, Question, facts
from holdfast.runtime.run.events import PoolLost
from holdfast.runtime.run.worker_logs import LogText, gap
from holdfast.runtime.system.channel import ChannelError, LineChannel, Message, to_message
from holdfast.runtime.system.devices import VISIBLE
from holdfast.runtime.system.own_process import (
    adopt_orphans,
    allow_many_files,
    die_with_parent,
    name_process,
)
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s
from holdfast.runtime.system.worker_status import (
    StatusChanges,
    WorkerStatus,
    Writer,
    lease_clock_s,
    pulse_interval_s,
)

_LONGEST_PAUSE_S = 0.1
"""Statuses are looked at ten times a second at least."""
_MOST_OUTPUT_BYTES = 32 << 20
"""Output that the head does not take piles up so far, and is dropped then, as on its own host."""
_UNTAKEN_BYTES = 256 << 10
"""So much output may be on its way: whatever else is told comes no later than after that, which
takes 0.4 s at 5 Mbit/s.  The lines for log files wait, too, and are lost first."""
_PIECE_BYTES = 16 << 10
"""Output travels in pieces of about this size."""
_ENDS_WITHIN_S = 2.0

_THIS_HOSTS = ("HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR", "SLURMD_NODENAME", "SLURM_NODEID")
_THIS_STEPS = ("SLURM_PROCID", "SLURM_LOCALID", *VISIBLE)
"""Variables that a host or its scheduler sets for itself: those of the head mean nothing here."""


class HostAgent:
    """The loop of a host's agent.

    Invariant: no worker of this host runs code of a job when the lease has ended.
    """

    def __init__(self, channel: LineChannel, greeting: wire.Greeting, pool: PoolStart) -> None:
        self._channel = channel
        self._reactor = Reactor()
        timeout_s = greeting.heartbeat_timeout_s
        self._head_looks_every_s = pulse_interval_s(timeout_s)
        self._pause_s = min(self._head_looks_every_s, _LONGEST_PAUSE_S)
        self._lease = HostLease.begin(timeout_s, lease_clock_s())
        self._shared = WorkerStatus.create()
        """Has the lease, for the watchdog and the writer."""
        self._shared.lease_ms = int(1000 * self._lease.until)
        self._watchdog = self._watched_by(timeout_s)
        self._why_over: str | None = None
        self.is_orphan = True
        """Whether the end of the job is not the head's wish."""
        self._lines: deque[tuple[int, bytes]] = deque()
        self._pieces: deque[tuple[int, bytes]] = deque()
        """What is to be sent of them."""
        self._waiting_bytes = self._untaken_bytes = self._dropped = 0
        wake_read, self._wake_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        self._reactor.watch(wake_read, lambda: self._take_output(wake_read))
        self._output = OutputForwarder(self._keep_output, verbose=greeting.verbose)
        self._output.logged.is_held = lambda: self._untaken_bytes >= _UNTAKEN_BYTES
        self._mirrored: dict[tuple[int, WorkerId], tuple[WorkerStatus, StatusChanges]] = {}
        self._seen: Seen | None = None
        self._part = Host(
            self._reactor,
            self._output,
            self._tell,
            heartbeat_timeout_s=timeout_s,
            pool=pool,
            limits=HostLimits(Path("/dev/shm/holdfast")),  # the directory's own disk may hang
            lease_fd=self._shared.fd,
        )
        self._reactor.watch_channel(channel, self._take, lambda: self._end("the head is gone"))

    def run(self) -> None:
        """Serve until the head ends this host, or is gone."""
        polled_at = told_at = witnessed_s()
        while self._why_over is None:
            self._reactor.run_once(max(0.0, polled_at + self._pause_s - witnessed_s()))
            self._look_at_lease()
            now = witnessed_s()
            if now - polled_at >= self._pause_s:
                polled_at = now
                self._part.poll(now)
                is_due = now - told_at >= self._head_looks_every_s
                told_at = now if is_due else told_at
                self._send_words(with_steady=is_due)

    def close(self) -> None:
        """Kill the workers, and leave nothing behind."""
        self._part.kill_all(self._why_over or "the agent ends")
        self._part.close()
        self._output.close(_ENDS_WITHIN_S)
        if not self.is_orphan:
            self._send_rest()
        _end_watchdog(self._watchdog)
        self._shared.close()
        self._reactor.close()
        self._channel.close()

    def _watched_by(self, timeout_s: float) -> HeldProcess:
        """Return a new watchdog; one that is killed is replaced."""
        watchdog = _start_watchdog(self._shared, timeout_s)

        def replace_it() -> None:
            self._reactor.forget(watchdog)
            _end_watchdog(watchdog)
            self._watchdog = self._watched_by(timeout_s)

        self._reactor.watch(watchdog, replace_it)
        return watchdog

    def _end(self, why: str) -> None:
        if self._why_over is None:
            self._why_over = why
            self._part.kill_all(why)

    def _look_at_lease(self) -> None:
        if self._lease.has_ended(lease_clock_s()):
            self._end("the head was not heard of in time")
            self._part.writer.replace("without the lease of its host")  # another one saves by now

    def _take(self, line: Message) -> None:
        match wire.FROM_HEAD.decode(line):
            case wire.Ping(number, heard):
                self._answer(number, heard)
            case wire.Words(of):
                for found in of:
                    status, _ = self._mirrored.get((found.generation, found.worker), (None, None))
                    if status is not None:
                        status.take(found.words, Writer.AGENT)
            case wire.Taken(size_bytes):
                self._untaken_bytes -= size_bytes
                self._send_output()
            case wire.EndHost(why):
                self.is_orphan = False
                self._end(why)
            case order:
                self._obey(order)

    def _obey(self, order: Down) -> None:
        try:
            self._part.take(order)
        except OSError as error:
            self._tell(PoolLost(f"no worker can be made: {error}"))
        for key, status in self._part.statuses.items():
            if key not in self._mirrored:
                status.lease_ms = int(1000 * self._lease.until)
                self._mirrored[key] = (status, StatusChanges(status, Writer.WORKER))

    def _answer(self, number: int, heard: int) -> None:
        """Answer a ping, after the lease was made as long as it allows."""
        self._lease = self._lease.confirmed(heard).answered(number, lease_clock_s())
        until_ms = int(1000 * self._lease.until)
        for status in (self._shared, *(status for status, _ in self._mirrored.values())):
            status.lease_ms = until_ms
        self._post(wire.Pong(number))

    def _tell(self, message: Up) -> None:
        """Tell the head something, after what the workers' statuses show by now.

        It comes after the output that is here by now, unless the link is behind: then an order to
        stop would lose its save, and the end of a worker would be late.
        """
        if isinstance(message, Seen):
            if message == self._seen:
                return
            self._seen = message
        elif not isinstance(message, LogText):
            self._send_words()
        if isinstance(message, WorkerExited):
            key = (message.generation or 0, message.worker)
            status, _ = self._mirrored.pop(key, (None, None))
            if status is not None:
                status.close()
        self._send_output()
        self._post(message)

    def _send_words(self, *, with_steady: bool = True) -> None:
        """Send what has changed in the workers' statuses; what each step changes, seldom."""
        looks = (
            wire.Changes(*key, changes.look(with_steady=with_steady))
            for key, (_, changes) in self._mirrored.items()
        )
        changed = tuple(found for found in looks if found.words)
        if changed:
            self._post(wire.Words(changed, time.monotonic()))

    def _keep_output(self, fd: int, lines: bytes) -> None:
        """Keep lines until the loop sends them; the thread that forwards output brings them."""
        if lines:
            self._lines.append((fd, lines))
            os.write(self._wake_fd, b"w")

    def _take_output(self, wake_fd: int) -> None:
        os.read(wake_fd, 1 << 16)
        self._send_output()

    def _send_output(self) -> None:
        """Send as much output as may be on its way."""
        while self._lines:
            fd, lines = self._lines.popleft()
            if self._waiting_bytes > _MOST_OUTPUT_BYTES:
                self._dropped += lines.count(b"\n")
                continue
            lines = self._gap() + lines
            self._waiting_bytes += len(lines)
            self._pieces += [(fd, piece) for piece in _pieces_of(lines)]
        while self._pieces and self._untaken_bytes < _UNTAKEN_BYTES:
            self._send_piece(*self._pieces.popleft())

    def _send_piece(self, fd: int, piece: bytes) -> None:
        self._waiting_bytes -= len(piece)
        self._post(wire.Output(fd, piece.decode(wire.TEXT)))

    def _post(self, message: wire.FromHost) -> None:
        self._untaken_bytes += wire.taken_bytes(message)
        self._channel.post(to_message(message))

    def _send_rest(self) -> None:
        """Send the newest of the output that is left: the head waits a moment for it."""
        self._send_output()
        while self._waiting_bytes > _UNTAKEN_BYTES:
            _, piece = self._pieces.popleft()
            self._waiting_bytes -= len(piece)
            self._dropped += piece.count(b"\n")
        for fd, piece in [(2, self._gap()), *self._pieces]:
            self._send_piece(fd, piece)
        for _ in self._channel.serve(Bound(_ENDS_WITHIN_S)):
            if not self._channel.wants_write:
                return

    def _gap(self) -> bytes:
        """Return the line that stands for those that were dropped, if there are any."""
        dropped, self._dropped = self._dropped, 0
        return gap(dropped) if dropped else b""


def _pieces_of(lines: bytes) -> Iterator[bytes]:
    """Return whole lines in pieces, each of which is as short as its last line allows."""
    begin = 0
    while begin < len(lines):
        end = lines.find(b"\n", begin + _PIECE_BYTES) + 1
        yield lines[begin : end or None]
        begin = end or len(lines)


def _start_watchdog(shared: WorkerStatus, timeout_s: float) -> HeldProcess:
    """Start what kills this process when the lease in ``shared`` ended long ago, stopped or not."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return HeldProcess(pid)
    # A thread that is not here may have held any lock when this process was forked: take none.
    name_process("holdfast-watch")
    die_with_parent(parent)
    while lease_clock_s() < shared.lease_ms / 1000 + timeout_s:
        time.sleep(min(timeout_s / 4, 1.0))
    os.kill(parent, signal.SIGKILL)
    os._exit(0)


def _end_watchdog(watchdog: HeldProcess) -> None:
    """End the process; one that was killed is reaped with other strays."""
    watchdog.kill()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(watchdog.pid, 0)
    watchdog.close()


def main() -> int:
    """Serve the head at the other end of stdin and stdout; return the exit code."""
    name_process("holdfast-host")
    for number in SENT_BY_BATCH_SYSTEMS:
        signal.signal(number, lambda *_: None)  # the head decides what a signal means
    if sys.stdin is None:  # the shell has closed it
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    channel = LineChannel(os.dup(0), os.dup(1))
    _let_go_of_the_shell()
    try:
        greeting = _wait_for_greeting(channel)
    except ChannelError as error:
        print(f"holdfast: what came first is no greeting of a head: {error}", file=sys.stderr)
        channel.send(to_message(wire.Unasked()))
        return 1
    if greeting is None:
        return 0
    _move_in(greeting)
    adopt_orphans()
    files = allow_many_files()
    assert threading.active_count() == 1, "the watchdog is a fork"
    pool = PoolProcess.start(PoolSettings(greeting.preload, greeting.entry, files))
    agent = HostAgent(channel, greeting, pool)
    try:
        agent.run()
    finally:
        agent.close()
    if agent.is_orphan:
        bring_back(os.environ)
    return 0


def _let_go_of_the_shell() -> None:
    """Keep both ends of the connection to ourselves: what a child prints is no message."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)


def _wait_for_greeting(channel: LineChannel) -> wire.Greeting | None:
    """Say what this host is like, if that is asked; return the greeting, None if the head leaves.

    Raises:
        ChannelError: what comes is no message.
    """
    is_asked = False
    while (line := channel.receive()) is not None:
        match wire.OPENING.decode(line):
            case Question() as question:
                signal.alarm(int(ANSWERS_WITHIN_S))  # a file system may hang
                channel.send(to_message(facts(question)))
                signal.alarm(0)
                is_asked = True
            case wire.Greeting() as greeting:
                return greeting
            case wire.EndHost():
                break
    if not is_asked:
        with contextlib.suppress(OSError):  # the head may be gone
            channel.send(to_message(wire.Unasked()))
    return None


def _move_in(greeting: wire.Greeting) -> None:
    """Take the environment, the working directory and the umask of the job."""
    kept = (*_THIS_HOSTS, *_THIS_STEPS)
    ours = {name: value for name, value in os.environ.items() if name in kept}
    theirs = {name: value for name, value in greeting.environment.items() if name not in kept}
    os.environ.clear()
    os.environ.update(theirs | ours)
    os.chdir(greeting.directory)
    os.umask(greeting.umask)


if __name__ == "__main__":
    sys.exit(main())
