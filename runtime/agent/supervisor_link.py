"""The agent's events on their way to the supervisor, kept while none listens.

Training goes on without a supervisor.  So events wait here while none is connected, and
while the one that is connected stands still: its socket would fill up.  The newest
connection is the supervisor.

A supervisor that stands still may come back and find its events here.  One that another has
replaced must not: it is killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from holdfast.runtime.agent.launch_log import LaunchLog
from holdfast.runtime.agent.standing_still import PeerSilence
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.held_process import HeldProcess

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

    def look(self, now: float) -> None:
        """Find out whether the supervisor stands still; call it every now and then."""
        if self.channel is not None:
            self._is_silent = self._silence.look(now) is not None

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
