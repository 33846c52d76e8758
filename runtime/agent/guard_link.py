"""The agent's hold on a guard: its connection, and its process.

A guard kills itself when its connection ends without a word of peace.  A guard that was
stopped cannot, and mpiexec would never tell the survivors.  So the agent kills it as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal

from holdfast.runtime.system.channel import Channel


class GuardLink:
    """One guard; ``process`` is its pidfd, None where the test has no process for it."""

    def __init__(self, channel: Channel, process: int | None) -> None:
        self.channel = channel
        self._process = process

    @staticmethod
    def of(channel: Channel) -> GuardLink | None:
        """Return the link to the process at the other end, None if it is gone already."""
        pid = channel.peer_pid
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        # Only the guard holds this connection.  While it is open, the number is the guard's.
        if _has_hung_up(channel):
            os.close(process)
            return None
        return GuardLink(channel, process)

    @property
    def pid(self) -> int | None:
        """The process id of the guard."""
        return None if self._process is None else self.channel.peer_pid

    def release(self) -> None:
        """Let the guard end in peace: its worker has left."""
        self.channel.post({"kind": "worker_ended", "clean": True})

    def kill(self) -> None:
        """SIGKILL the guard, so that MPI tells the survivors of its worker's death."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection and the hold on the process."""
        self.channel.close()
        if self._process is not None:
            os.close(self._process)
            self._process = None


def _has_hung_up(channel: Channel) -> bool:
    waiting = select.poll()
    waiting.register(channel, select.POLLRDHUP)
    return bool(waiting.poll(0))
