"""For how long the process at the other end of a connection has said nothing.

Supervisor and agent watch each other with it.  Any message is a sign of life, and the failure
detector judges their number like a worker's heartbeat: who was away accuses nobody.
"""

from __future__ import annotations

from holdfast.recovery.detector import FailureDetector, HeartbeatView, SilenceLimits
from holdfast.recovery.world import WorkerId

SHORTEST_SILENCE_S = 5.0
"""Supervisor and agent may be silent to each other for as long, even if workers may not."""

_PEER = WorkerId(0)


class PeerSilence:
    """Counts the messages of one peer."""

    def __init__(self, heartbeat_timeout_s: float) -> None:
        limits = SilenceLimits(max(heartbeat_timeout_s, SHORTEST_SILENCE_S))
        self._detector = FailureDetector(limits)
        self._heard = 0

    def heard(self) -> None:
        """Take note that the peer has sent something."""
        self._heard += 1

    def look(self, now: float) -> float | None:
        """Return for how long the peer has been silent, None while that is not too long."""
        self._detector = self._detector.observe({_PEER: HeartbeatView(self._heard, 0)}, now)
        finding = self._detector.finding(_PEER)
        return finding.silent_s if finding.is_dead else None
