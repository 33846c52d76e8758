"""Who of the processes around an agent stands still: a peer behind a connection, or a helper.

Peers watch each other: any message is a sign of life.  Workers prove that they live by
counting, and a process that owes an answer has a deadline.  mpiexec and the guards can do
neither, and an idle pool or writer owes nothing.  For them the kernel's word is enough: a process
in the state ``T`` (stopped by a signal or a tracer) runs no code, answers nobody, and does not end
by itself.  They are judged like a worker whose counter stands still, so a
watcher that was away itself accuses nobody.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from holdfast.recovery.detector import ChangeDetector
from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.processes import HeldProcess, is_stopped

SHORTEST_SILENCE_S = 5.0
"""Peers may be silent to each other for as long, even if workers may not."""


class PeerSilence:
    """For how long the process at the other end of a connection has said nothing."""

    def __init__(self, heartbeat_timeout_s: float) -> None:
        limit_s = max(heartbeat_timeout_s, SHORTEST_SILENCE_S)
        self._detector: ChangeDetector[str] = ChangeDetector(limit_s)
        self._heard = 0

    def heard(self) -> None:
        """Take note that the peer has sent something."""
        self._heard += 1

    def poll(self, now: float) -> float | None:
        """Return for how long the peer has been silent, None while that is not too long."""
        self._detector = self._detector.observe({"peer": self._heard}, now)
        return self._detector.beyond.get("peer")


class StoppedProcesses:
    """For how long each watched process has been stopped."""

    def __init__(self, limit_s: float) -> None:
        self._detector: ChangeDetector[int] = ChangeDetector(limit_s)
        self._polls = 0

    def poll(self, pids: Iterable[int], now: float) -> dict[int, float]:
        """Return the seconds of standstill of those of ``pids`` that are beyond the limit."""
        self._polls += 1
        # A stopped process shows the same count at each poll; a running one never does.
        views = {pid: -1 if is_stopped(pid) else self._polls for pid in pids}
        self._detector = self._detector.observe(views, now)
        return self._detector.beyond


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
