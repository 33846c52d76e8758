"""The agent's hold on a guard: its connection, and its process.

A guard kills itself when its connection ends without a word of peace.  A guard that was
stopped cannot, and mpiexec would never tell the survivors.  So the agent kills it as well.
"""

from __future__ import annotations

from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.held_process import HeldProcess


class GuardLink:
    """One guard; ``process`` is None in tests of connections alone."""

    def __init__(self, channel: Channel, process: HeldProcess | None) -> None:
        self.channel = channel
        self._process = process

    @property
    def pid(self) -> int | None:
        """The process id of the guard."""
        return None if self._process is None else self._process.pid

    def release(self) -> None:
        """Let the guard end in peace: its worker has left."""
        self.channel.post({"kind": "worker_ended", "clean": True})

    def kill(self) -> None:
        """SIGKILL the guard, so that MPI tells the survivors of its worker's death."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Close the connection and the hold on the process."""
        self.channel.close()
        if self._process is not None:
            self._process.close()
            self._process = None
