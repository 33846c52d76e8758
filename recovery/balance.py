"""How many microbatches each worker computes: as many as its speed is worth.

A step takes as long as its slowest worker.  If that has fewer microbatches, and the others more,
the step is shorter.  The sum is that of one tree over the microbatches (`recovery.reduction`), so
it has the same bytes whoever computes them.

All workers *look* at the same commits: there each tells what a microbatch and a step have taken
it, and each comes to the same deal.  It is made only if

* it makes a step shorter by a tenth at least, as far as computing decides;
* that was so at three looks in a row.  Each deal doubles their number, so that noise moves little.

A deal after which steps are no shorter is taken back at the next look.  A death begins anew, with
equal parts: who is left may be as fast as the others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.recovery.world import Assignment, World, assign

LEAST_GAIN = 0.1
_LOOK_S, FIRST_LOOK, _LONGEST_LOOK = 1.0, 8, 1 << 16
"""A look is due after so many seconds, but not before so many commits."""
PATIENCE, _MOST_PATIENCE = 3, 96


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds that a worker has taken for one microbatch, and for a step with its waits.

    A spare computes nothing, and has 0 seconds.
    """

    microbatch_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Balance:
    """Who owns which microbatches in a world, and what was seen of it; each look makes another."""

    world: World
    assignment: Assignment
    next_look: int = FIRST_LOOK
    """The commits from this look to the next one."""
    deals: int = 0
    agreed: int = 0
    """How many looks in a row have promised a gain."""
    before_s: float | None = None
    """What a step took before the deal, if this look is the first one after it."""

    @staticmethod
    def begin(microbatches: int, world: World) -> Balance:
        """Return that of a world of which no speed is known: equal parts."""
        return Balance(world, assign(microbatches, world))

    @property
    def can_shift(self) -> bool:
        """Whether a worker can have fewer than another one, and each at least one."""
        return 1 < len(self.world.active) < self.assignment.microbatches

    def looked(self, paces: Sequence[Pace]) -> Balance:
        """Return the balance after a look at the paces of all workers, in rank order."""
        step_s = paces[0].step_s
        if not step_s > 0:
            return replace(self, agreed=0)
        next_look = min(max(FIRST_LOOK, math.ceil(_LOOK_S / step_s)), _LONGEST_LOOK)
        found = replace(self, next_look=next_look, before_s=None)
        if self.before_s is not None and step_s >= self.before_s:
            equal = assign(self.assignment.microbatches, self.world)
            return replace(found, assignment=equal, agreed=0)
        seconds = [pace.microbatch_s for pace in paces[: len(self.world.active)]]
        if not min(seconds) > 0:
            return replace(found, agreed=0)
        dealt = deal(self.assignment.microbatches, self.world, seconds)
        saved_s = longest_s(self.assignment, self.world, seconds)
        saved_s -= longest_s(dealt, self.world, seconds)
        if saved_s < LEAST_GAIN * step_s:
            return replace(found, agreed=0)
        if self.agreed + 1 < min(PATIENCE << self.deals, _MOST_PATIENCE):
            return replace(found, agreed=self.agreed + 1)
        return replace(found, assignment=dealt, deals=self.deals + 1, agreed=0, before_s=step_s)


def deal(microbatches: int, world: World, seconds: Sequence[float]) -> Assignment:
    """Return the runs of microbatches, at least one for each active worker, that end soonest.

    ``seconds`` are those that one microbatch takes each of them, in rank order.
    """
    counts = [1] * len(seconds)
    # Of two that would end alike, the slower one takes the next: so less is moved.
    ends = [(2 * each_s, -each_s, rank) for rank, each_s in enumerate(seconds)]
    heapq.heapify(ends)
    for _ in range(microbatches - len(counts)):
        _, _, rank = ends[0]
        counts[rank] += 1
        each_s = seconds[rank]
        heapq.heapreplace(ends, ((counts[rank] + 1) * each_s, -each_s, rank))
    runs = zip(world.active, counts, strict=True)
    return Assignment(tuple(worker for worker, count in runs for _ in range(count)))


def longest_s(assignment: Assignment, world: World, seconds: Sequence[float]) -> float:
    """Return the seconds that the slowest active worker computes."""
    counts = counts_of(assignment, world)
    return max(count * each_s for count, each_s in zip(counts, seconds, strict=True))


def counts_of(assignment: Assignment, world: World) -> tuple[int, ...]:
    """Return how many microbatches each active worker owns, in rank order."""
    return tuple(assignment.owners.count(worker) for worker in world.active)
