"""The agent's events on their way to the supervisor, kept while none is connected.

Training goes on without a supervisor, so events wait here until one connects
(again).  The newest connection is the supervisor; an older one is closed.
"""

from __future__ import annotations

import time
from collections import deque

from holdfast.runtime.system.channel import Channel, Message

_KEPT_EVENTS = 10_000


class SupervisorLink:
    """Sends events to the supervisor, or keeps the newest 10,000 for the next one."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self._waiting: deque[Message] = deque(maxlen=_KEPT_EVENTS)

    def attach(self, channel: Channel, greeting: Message) -> None:
        """Make ``channel`` the supervisor: greet it, then send the events that it has missed."""
        self.channel = channel
        channel.post({**greeting, "now": time.monotonic()})
        while self._waiting:
            channel.post(self._waiting.popleft())

    def tell(self, event: Message) -> None:
        """Send ``event`` with the current time."""
        stamped = {**event, "now": time.monotonic()}
        if self.channel is None:
            self._waiting.append(stamped)
        else:
            self.channel.post(stamped)

    def detach(self) -> None:
        """Close the connection; events wait from now on."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
