"""When a host is lost: two clocks, and no comparison between them.

The head pings each host, and names in each ping the last answer that it has *heard*.  A host's
*lease* runs out 0.8 T after it has sent that answer, by its own clock; then it ends its workers.
The head gives a host up T after it has heard the last answer, by the head's clock; then the
survivors go on without it.

Invariant: the lost side is dead first.  An answer is sent before it is heard.  So a host's lease
runs out before the head gives it up, in each direction that a link is cut, as long as both clocks
run equally fast to a fifth.  The clock of a lease must go on while its process stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.recovery.detector import counted_s

LEASE_SHARE = 0.8
"""A lease's part of the time after which the head gives a host up."""

PINGS_PER_TIMEOUT = 10


@dataclass(frozen=True, slots=True)
class HostLease:
    """A host's right to train, as the host itself sees it; times are in seconds of its clock."""

    timeout_s: float
    until: float
    answers: tuple[tuple[int, float], ...] = ()
    """Number and time of each answer that the head is not known to have heard, in order."""

    @staticmethod
    def begin(timeout_s: float, now: float) -> HostLease:
        """Return the lease of a host that the head has just started."""
        return HostLease(timeout_s, now + LEASE_SHARE * timeout_s)

    def answered(self, number: int, now: float) -> HostLease:
        """Return the lease after the answer to ping ``number`` was sent."""
        return replace(self, answers=(*self.answers, (number, now)))

    def confirmed(self, number: int) -> HostLease:
        """Return the lease after the head has told that it has heard answer ``number``."""
        sent = [at for answer, at in self.answers if answer == number]
        until = max([self.until, *(at + LEASE_SHARE * self.timeout_s for at in sent)])
        rest = tuple(answer for answer in self.answers if answer[0] > number)
        return replace(self, until=until, answers=rest)

    def has_ended(self, now: float) -> bool:
        """Whether the host must have ended its workers by now."""
        return now >= self.until


@dataclass(frozen=True, slots=True)
class HostPings:
    """A host, as the head sees it: its pings, and how long it has been silent.

    Silence is counted in polls, each at most a quarter of the limit: a head that stood still
    accuses nobody.  That makes it later, never earlier.
    """

    timeout_s: float
    polled_at: float
    sent: int = 0
    heard: int = 0
    silent_s: float = 0.0
    """Seconds since the last answer, of those that this head has witnessed."""
    since_ping_s: float = float("inf")

    def polled(self, now: float) -> HostPings:
        """Return the state at ``now``."""
        passed = counted_s(self.polled_at, now, self.timeout_s / 4)
        return replace(
            self,
            polled_at=now,
            silent_s=self.silent_s + passed,
            since_ping_s=self.since_ping_s + passed,
        )

    @property
    def is_ping_due(self) -> bool:
        """Whether it is time for another ping."""
        return self.since_ping_s >= self.timeout_s / PINGS_PER_TIMEOUT

    def pinged(self) -> HostPings:
        """Return the state after ping number ``sent`` + 1, which names ``heard``."""
        return replace(self, sent=self.sent + 1, since_ping_s=0.0)

    def answered(self, number: int) -> HostPings:
        """Return the state after an answer; the next ping is due, so that the host knows soon."""
        if number <= self.heard:
            return self
        is_late = self.silent_s > 2 * self.timeout_s / PINGS_PER_TIMEOUT
        since_s = float("inf") if is_late else self.since_ping_s
        return replace(self, heard=number, silent_s=0.0, since_ping_s=since_s)

    @property
    def is_lost(self) -> bool:
        """Whether the host has been silent for too long."""
        return self.silent_s > self.timeout_s
