"""A process, child or not, that is held by a descriptor (pidfd).

A process id may be used again as soon as its process was waited for.  A descriptor stands for
one process for good.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.witnessed_time import Bound


class HeldProcess:
    """One process that can be signalled and waited for."""

    def __init__(self, pid: int) -> None:
        """Hold the process that has the number ``pid`` now; raises ``OSError`` if none has."""
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    @staticmethod
    def of_peer(channel: Channel) -> HeldProcess | None:
        """Return the process that has connected by ``channel``, None if it is gone already."""
        try:
            process = HeldProcess(channel.peer_pid)
        except OSError:
            return None
        # Its connection is open still, so it lives, and the number is its own.
        if _has_hung_up(channel):
            process.close()
            return None
        return process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """SIGKILL the process, if it still lives."""
        self.signal(signal.SIGKILL)

    def has_ended(self, within_s: float) -> bool:
        """Wait for its end, at most ``within_s``; return whether it has ended."""
        waiting = [self._descriptor]
        return bool(Bound(within_s).wait(lambda left_s: select.select(waiting, [], [], left_s)[0]))

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._descriptor)


def _has_hung_up(channel: Channel) -> bool:
    waiting = select.poll()
    waiting.register(channel, select.POLLRDHUP)
    return bool(waiting.poll(0))
