"""Which deaths were the OOM killer's, told from the counters of its victims; pure.

The kernel counts a victim before it sends the SIGKILL (``__oom_kill_process`` in mm/oom_kill.c).
So a death by SIGKILL that nobody of the job sent, and a counter that went up, belong together.  A
process with much memory takes a while to end, and may be seen a look later.

Invariant: each count explains one death at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_CLAIMED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class OomWitness:
    """The counter at the last look, and the kills that no death was explained with.

    Args:
        count: what the counter showed at the last look; None before the first one.
    """

    count: int | None = None
    unclaimed: tuple[float, ...] = ()

    def observe(self, count: int | None, now: float) -> OomWitness:
        """Return the witness after the counter has shown ``count`` at ``now``.

        A count that could not be read, None, tells nothing.
        """
        if count is None:
            return self
        before = count if self.count is None else self.count
        fresh = tuple(at for at in self.unclaimed if now - at <= _CLAIMED_WITHIN_S)
        return OomWitness(count, fresh + (now,) * max(0, count - before))

    def claim(self) -> OomWitness | None:
        """Return the witness after one kill has explained a death; None if there is no kill."""
        return replace(self, unclaimed=self.unclaimed[1:]) if self.unclaimed else None
