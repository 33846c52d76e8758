"""Whether all workers of a launch wait for each other, and none can come on.

Theory.  A survivor leaves an exchange only if MPI tells it of a death.  MPI may lose the
event, or hang in Shrink or Agree; nothing inside MPI bounds that.  But a step is a cycle:
while one worker computes, the others may wait for it as long as it takes.  When *every*
worker waits, and none has begun or ended a piece of work for longer than the limit, nobody
is left whom they could wait for.

Each worker counts its turns: the pieces of work that it has begun.  The verdict needs only
two readings of these counts.  As with heartbeats, a look adds at most a quarter of the limit,
so an observer that was away accuses nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.recovery.detector import LOOKS_PER_LIMIT, counted_s
from holdfast.recovery.world import WorkerId


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of work at one look: its number, and whether it ends only with the peers' help."""

    number: int
    waits_for_peers: bool


@dataclass(frozen=True, slots=True)
class StallDetector:
    """For how long nobody has come on; each look makes a new detector."""

    limit_s: float
    looked_at: float | None = None
    standing_s: float = 0.0
    _turns: Mapping[WorkerId, Turn] = field(default_factory=dict, repr=False)

    def observe(self, turns: Mapping[WorkerId, Turn], now: float) -> StallDetector:
        """Return the detector after a look at the turns of all workers that live, at ``now``."""
        passed_s = counted_s(self.looked_at, now, self.limit_s / LOOKS_PER_LIMIT)
        all_wait = bool(turns) and all(turn.waits_for_peers for turn in turns.values())
        is_standing = all_wait and dict(turns) == self._turns
        standing_s = self.standing_s + passed_s if is_standing else 0.0
        return replace(self, looked_at=now, standing_s=standing_s, _turns=dict(turns))

    @property
    def is_stalled(self) -> bool:
        """Whether all have waited for each other for longer than the limit."""
        return self.standing_s > self.limit_s
