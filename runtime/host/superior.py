"""Who decides for an agent: the head in its own process, or one at the other end of a connection.

An agent hosts and tells; its superior decides.  On the first host of a job that is the head
(`holdfast.runtime.head`), in the agent's own process.  Any other agent is told by messages of
the same words over its socket.  Training goes on without a superior.  So events wait
while none is connected, and while the one that is connected stands still: its socket would fill
up.  One that stands still may come back and find its events here.

Peers watch each other: any message is a sign of life.  Workers prove that they live by
counting, and a process that owes an answer has a deadline.  mpiexec and the guards can do
neither, and an idle pool or writer owes nothing.  For them the kernel's word is enough: a process
in the state ``T`` (stopped by a signal or a tracer) runs no code, answers nobody, and does not end
by itself.  The failure detector judges all of them like a worker whose counter stands still, so a
watcher that was away itself accuses nobody.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from holdfast.recovery.detector import FailureDetector, HeartbeatView, SilenceLimits
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.processes import HeldProcess, is_stopped
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import witnessed_s

SHORTEST_SILENCE_S = 5.0
"""Peers may be silent to each other for as long, even if workers may not."""

SOCKET_NAME = "agent.sock"
"""Where an agent listens, in its directory."""

_PEER = WorkerId(0)
_KEPT_EVENTS = 10_000
_FIRST_SUPERIOR_WITHIN_S = 60.0


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


class Superior(Protocol):
    """Hears everything that happens on a host, and says what is done there."""

    @property
    def is_present(self) -> bool:
        """Whether a superior decides, as far as one can see."""

    @property
    def on_files(self) -> Callable[[Channel], None] | None:
        """What gets each writer's channel for the run directory; None if that is another host's."""

    def describe(self) -> Message:
        """Return what is known of the job beside its workers, for the answer to ``status``."""

    def tell(self, event: Message) -> None:
        """Take an event; never waits, and never calls the host back at once."""

    def poll(self, now: float, *, is_idle: bool) -> ExitCode | None:
        """Go on with what is to be done; return the agent's exit code once nobody needs it."""

    def introduce(self, visitor: Visitor, message: Message) -> None:
        """Serve a connection of which the agent itself knows nothing."""

    def finish(self) -> None:
        """Write down what is left, while the agent's writer still lives."""

    def take_signals(self, numbers: bytes) -> None:
        """Act on signals that the agent's process has got."""

    def close(self) -> None:
        """Do what is left at the end; the agent's workers are gone."""


class RemoteSuperior:
    """Sends events over the newest connection, or keeps the newest 10,000 for the next one."""

    def __init__(
        self,
        reactor: Reactor,
        obey: Callable[[Message], None],
        heartbeat_timeout_s: float = 10.0,
        parent: int | None = None,
    ) -> None:
        self._reactor = reactor
        self._obey = obey
        self._channel: Channel | None = None
        self._waiting: deque[Message] = deque(maxlen=_KEPT_EVENTS)
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._silence = PeerSilence(heartbeat_timeout_s)
        self._is_silent = False
        self._exit_code: ExitCode | None = None
        self._parent = os.getppid() if parent is None else parent
        self._waits_until = witnessed_s() + _FIRST_SUPERIOR_WITHIN_S

    @property
    def is_present(self) -> bool:
        """Whether a superior is connected and does not stand still."""
        return self._channel is not None and not self._is_silent

    @property
    def on_files(self) -> None:
        """Nothing: the run directory is looked after by the head's writer."""

    def describe(self) -> Message:
        """Return nothing: who decides knows the job."""
        return {}

    def tell(self, event: Message) -> None:
        """Send ``event`` with the current time."""
        stamped = {**event, "now": time.monotonic()}
        if self._channel is None or self._is_silent:
            self._waiting.append(stamped)
        else:
            self._channel.post(stamped)

    def poll(self, now: float, *, is_idle: bool) -> ExitCode | None:
        """Find out whether the superior stands still; an agent that has none may end."""
        if self._channel is not None:
            self._is_silent = self._silence.poll(now) is not None
        elif is_idle and not (now < self._waits_until and os.getppid() == self._parent):
            kill_standing_parent(self._parent)
            return self._exit_code or ExitCode.DONE
        return self._exit_code

    def introduce(self, visitor: Visitor, message: Message) -> None:
        """Serve another superior from now on, in place of the one before."""
        if message.get("kind") != "superior":
            self._reactor.forget(visitor.channel)
            visitor.channel.close()
            return
        visitor.on_message = self._on_message
        visitor.on_end = lambda: self._lose(visitor.channel)
        self._reactor.prefer(visitor.channel)  # a launch is known before its guards arrive
        if self._channel is not None:
            self._reactor.forget(self._channel)
            self._channel.close()
        self._channel = visitor.channel
        self._silence = PeerSilence(self._heartbeat_timeout_s)
        self._is_silent = False
        self._channel.post({"kind": "agent_ready", "now": time.monotonic()})
        self._send_waiting()

    def finish(self) -> None:
        """Do nothing: what is told is on its way."""

    def take_signals(self, numbers: bytes) -> None:
        """Pass SIGTERM on, which a batch system sends to all; without a superior end at it."""
        if signal.SIGTERM not in numbers:
            return
        if self.is_present:
            self.tell({"kind": "signalled", "signal": "SIGTERM"})
        else:
            self._exit_code = ExitCode.TERMINATED

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _on_message(self, message: Message) -> None:
        self._silence.heard()
        if self._is_silent:
            self._is_silent = False
            self._send_waiting()
        if message.get("kind") == "shutdown":
            self._exit_code = ExitCode.DONE
        else:
            self._obey(message)

    def _lose(self, channel: Channel) -> None:
        if self._channel is channel:
            self._waits_until = witnessed_s()
            self.close()

    def _send_waiting(self) -> None:
        while self._waiting and self._channel is not None:
            self._channel.post(self._waiting.popleft())


class PeerSilence:
    """For how long the process at the other end of a connection has said nothing."""

    def __init__(self, heartbeat_timeout_s: float) -> None:
        limits = SilenceLimits(max(heartbeat_timeout_s, SHORTEST_SILENCE_S))
        self._detector = FailureDetector(limits)
        self._heard = 0

    def heard(self) -> None:
        """Take note that the peer has sent something."""
        self._heard += 1

    def poll(self, now: float) -> float | None:
        """Return for how long the peer has been silent, None while that is not too long."""
        self._detector = self._detector.observe({_PEER: HeartbeatView(self._heard, 0)}, now)
        finding = self._detector.finding(_PEER)
        return finding.silent_s if finding.is_dead else None


class StoppedProcesses:
    """For how long each watched process has been stopped."""

    def __init__(self, limit_s: float) -> None:
        self._detector = FailureDetector(SilenceLimits(limit_s))
        self._polls = 0

    def poll(self, pids: Iterable[int], now: float) -> dict[int, float]:
        """Return the seconds of standstill of those of ``pids`` that are beyond the limit."""
        self._polls += 1
        views: dict[WorkerId, HeartbeatView] = {}
        for pid in pids:
            # A stopped process shows the same count at each poll; a running one never does.
            count = -1 if is_stopped(pid) else self._polls
            views[WorkerId(pid)] = HeartbeatView(count, phase=0)
        self._detector = self._detector.observe(views, now)
        found = self._detector.findings()
        return {int(pid): finding.silent_s for pid, finding in found.items() if finding.is_dead}


def kill_standing_parent(parent: int) -> None:
    """SIGKILL the process that has started this one, if it was stopped ever since.

    It owns the run directory, and nobody could have that before it is woken.
    """
    if os.getppid() == parent and is_stopped(parent):
        os.kill(parent, signal.SIGKILL)


def kill_peer(channel: Channel, *, unless: int) -> None:
    """SIGKILL the process at the other end, unless its id is ``unless``."""
    process = HeldProcess.of_peer(channel)
    if process is not None:
        if process.pid != unless:
            process.kill()
        process.close()
