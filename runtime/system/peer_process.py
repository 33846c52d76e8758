"""The process at the other end of a connection, held by a descriptor (pidfd).

A process id may be used again as soon as its process was waited for.  A descriptor stands for
one process for good.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

from holdfast.runtime.system.channel import Channel


class PeerProcess:
    """One process that can be killed and waited for, whoever its parent is."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @staticmethod
    def of(channel: Channel) -> PeerProcess | None:
        """Return the process that has connected by ``channel``, None if it is gone already."""
        pid = channel.peer_pid
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        # Its connection is open still, so it lives, and the number is its own.
        if _has_hung_up(channel):
            os.close(descriptor)
            return None
        return PeerProcess(pid, descriptor)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when the process has ended."""
        return self._descriptor

    def kill(self) -> None:
        """SIGKILL the process, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def has_ended(self, within_s: float) -> bool:
        """Wait for its end, at most ``within_s``; return whether it has ended."""
        return bool(select.select([self._descriptor], [], [], within_s)[0])

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._descriptor)


def _has_hung_up(channel: Channel) -> bool:
    waiting = select.poll()
    waiting.register(channel, select.POLLRDHUP)
    return bool(waiting.poll(0))
