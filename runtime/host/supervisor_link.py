"""The agent's link to its supervisor: events that wait, what another needs, who stands still.

Training goes on without a supervisor.  So events wait here while none is connected, and
while the one that is connected stands still: its socket would fill up.  The newest
connection is the supervisor.  One that stands still may come back and find its events here.
One that another has replaced must not: it is killed.

Of the events of a launch a log keeps as few as another supervisor needs to go on from there.  The
job's machine looks at the newest world and checkpoint only, and at one report of each kind from
each worker.  So older ones are forgotten, and the log of a launch that runs for months stays as
small as that of its first minute.

Supervisor and agent watch each other: any message is a sign of life.  Workers prove that they live
by counting, and a process that owes an answer has a deadline.  mpiexec and the guards can do
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
from collections.abc import Iterable, Sequence

from holdfast.recovery.detector import FailureDetector, HeartbeatView, SilenceLimits
from holdfast.recovery.world import WorkerId
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.processes import HeldProcess, is_stopped

SHORTEST_SILENCE_S = 5.0
"""Supervisor and agent may be silent to each other for as long, even if workers may not."""

_PEER = WorkerId(0)

_OF_A_WORKER = frozenset({"worker_started", "worker_exited"})
_REPORTS = frozenset({"joined", "world", "checkpoint", "error", "complete", "stopped"})

SOCKET_NAME = "agent.sock"
"""Where a supervisor connects, in the agent's directory."""

_KEPT_EVENTS = 10_000


class SupervisorLink:
    """Sends events to the supervisor, or keeps the newest 10,000 for the next one."""

    def __init__(self, heartbeat_timeout_s: float = 10.0) -> None:
        self.channel: Channel | None = None
        self.log = LaunchLog()
        self._waiting: deque[Message] = deque(maxlen=_KEPT_EVENTS)
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._silence = PeerSilence(heartbeat_timeout_s)
        self._is_silent = False

    @property
    def is_present(self) -> bool:
        """Whether a supervisor is connected and does not stand still."""
        return self.channel is not None and not self._is_silent

    @property
    def pid(self) -> int | None:
        """The process id of the connected supervisor."""
        return None if self.channel is None else self.channel.peer_pid

    def attach(self, channel: Channel, greeting: Message, fds: Sequence[int] = ()) -> None:
        """Make ``channel`` the supervisor: greet it, then send the events that it has missed."""
        self.channel = channel
        self._silence = PeerSilence(self._heartbeat_timeout_s)
        self._is_silent = False
        channel.post({**greeting, "now": time.monotonic()}, fds)
        self._send_waiting()

    def repeat(self) -> tuple[Message, ...]:
        """Return the events of the launch that an earlier supervisor was told already."""
        missed = {id(event) for event in self._waiting}
        return tuple(event for event in self.log.events if id(event) not in missed)

    def heard(self) -> None:
        """Take note that the supervisor has sent something."""
        self._silence.heard()
        if self._is_silent:
            self._is_silent = False
            self._send_waiting()

    def poll(self, now: float) -> None:
        """Find out whether the supervisor stands still; call it every now and then."""
        if self.channel is not None:
            self._is_silent = self._silence.poll(now) is not None

    def tell(self, event: Message) -> None:
        """Send ``event`` with the current time."""
        stamped = {**event, "now": time.monotonic()}
        self.log.note(stamped)
        if self.channel is None or self._is_silent:
            self._waiting.append(stamped)
        else:
            self.channel.post(stamped)

    def depose(self, successor: Channel) -> None:
        """End the connection of the supervisor; kill it, unless it has connected anew itself."""
        if self.channel is not None:
            process = HeldProcess.of_peer(self.channel)
            if process is not None and process.pid != successor.peer_pid:
                process.kill()
            if process is not None:
                process.close()
            self.detach()

    def detach(self) -> None:
        """Close the connection; events wait from now on."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _send_waiting(self) -> None:
        while self._waiting and self.channel is not None:
            self.channel.post(self._waiting.popleft())


class LaunchLog:
    """The newest launch message, and what it has come to so far."""

    def __init__(self) -> None:
        self.launch: Message | None = None
        self._events: dict[tuple[object, ...], Message] = {}

    def begin(self, launch: Message) -> None:
        """Forget the last launch; ``launch`` is the message that announced this one."""
        self.launch = launch
        self._events.clear()

    def note(self, event: Message) -> None:
        """Keep ``event`` if a supervisor decides by it, in place of an older one of its kind."""
        key = _key_of(event)
        if key is not None:
            self._events.pop(key, None)
            self._events[key] = event

    @property
    def summary(self) -> Message | None:
        """The launch as people know it, None before the first one."""
        if self.launch is None:
            return None
        config = self.launch["config"]
        return {
            "script": config["options"]["script"],
            "generation": config["generation"],
            "workers": config["workers"],
            "relaunch": self.launch.get("relaunch", 0),
        }

    @property
    def events(self) -> tuple[Message, ...]:
        """The kept events, the newest last."""
        return tuple(self._events.values())


def _key_of(event: Message) -> tuple[object, ...] | None:
    kind = event["kind"]
    if kind in _OF_A_WORKER:
        return (kind, event["worker"])
    if kind in ("launch_ended", "renewing"):
        return (kind,)
    if kind != "worker_report" or event["report"].get("kind") not in _REPORTS:
        return None
    report = event["report"]["kind"]
    return (report,) if report == "checkpoint" else (report, event["worker"])


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


class StandingStill:
    """For how long each watched process has been stopped."""

    def __init__(self, limit_s: float) -> None:
        self._detector = FailureDetector(SilenceLimits(limit_s))
        self._looks = 0

    def poll(self, pids: Iterable[int], now: float) -> dict[int, float]:
        """Return the seconds of standstill of those of ``pids`` that are beyond the limit."""
        self._looks += 1
        views: dict[WorkerId, HeartbeatView] = {}
        for pid in pids:
            # A stopped process shows the same count at each look; a running one never does.
            count = -1 if is_stopped(pid) else self._looks
            views[WorkerId(pid)] = HeartbeatView(count, phase=0)
        self._detector = self._detector.observe(views, now)
        found = self._detector.findings()
        return {int(pid): finding.silent_s for pid, finding in found.items() if finding.is_dead}


def kill_standing_parent(parent: int) -> None:
    """SIGKILL the supervisor that has started this process, if it was stopped ever since.

    It owns the run directory, and nobody could have that before it is woken.
    """
    if os.getppid() == parent and is_stopped(parent):
        os.kill(parent, signal.SIGKILL)
