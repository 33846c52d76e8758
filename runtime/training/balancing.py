"""What a worker measures of its speed, and the looks at which all compare theirs.

A look needs no message of its own and no vote: the step tells when one is due.  The paces are
gathered beside the next sum, and the vote after that proves that all have them.  What follows is
decided by `recovery.balance`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from holdfast.recovery.balance import FIRST_LOOK, Balance, Pace, counts_of
from holdfast.recovery.event import Event
from holdfast.recovery.world import Assignment
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.events import Balanced

_MEASURED = 4 * FIRST_LOOK
"""The median of so many steps counts: a save, or a validation between two, is none of them."""


class Balancer:
    """The speed of this worker, and the balance of its world."""

    def __init__(
        self,
        membership: Membership,
        microbatches: int,
        report: Callable[[Event], None],
        *,
        is_on: bool,
    ) -> None:
        self._membership = membership
        self._microbatches = microbatches
        self._report = report
        self._is_on = is_on
        self._parts: deque[float] = deque(maxlen=_MEASURED)
        self._steps: deque[float] = deque(maxlen=_MEASURED)
        self._committed_at: float | None = None
        self._due: int | None = None
        """The step of the next look, which the first sum after a look tells."""
        self._paces: npt.NDArray[np.float64] | None = None
        self.world_changed()

    def world_changed(self) -> None:
        """Begin anew with equal parts."""
        self._balance = Balance.begin(self._microbatches, self._membership.world)
        self._begin_look()

    @property
    def assignment(self) -> Assignment:
        """Who owns which microbatches, if no death has moved some."""
        return self._balance.assignment

    def computed(self, parts: int, seconds: float) -> None:
        """Note what the microbatches of an update have taken."""
        if parts:
            self._parts.append(seconds / parts)

    def before_sum(self, step: int) -> None:
        """Gather the paces of all workers, if a look is due; all sum after the same ``step``.

        Raises:
            WorldBroken: a member died.
        """
        if not (self._is_on and self._balance.can_shift):
            return
        if self._due is None:
            self._due = step + self._balance.next_look
        if step >= self._due:
            mine = np.array([median(self._parts or [0.0]), median(self._steps or [0.0])])
            self._paces = np.zeros((self._membership.communicator.size, len(mine)))
            self._membership.communicator.allgather_unchecked(mine, self._paces)

    def committed(self, step: int) -> bool:
        """Take note of a committed update; return whether others own its parts from now on."""
        now = time.monotonic()
        if self._committed_at is not None:
            self._steps.append(now - self._committed_at)
        self._committed_at = now
        if self._paces is None:
            return False
        before, paces = self._balance, [Pace(*map(float, pace)) for pace in self._paces]
        self._balance = before.looked(paces)
        self._begin_look()
        if self.assignment == before.assignment:
            return False
        if self._membership.is_first:
            self._tell(step, paces, is_taken_back=self._balance.deals == before.deals)
        return True

    def _tell(self, step: int, paces: Sequence[Pace], *, is_taken_back: bool) -> None:
        world = self._membership.world
        seconds = [pace.microbatch_s for pace in paces[: len(world.active)]]
        slowest_s = max(seconds)
        slowest, times = world.active[seconds.index(slowest_s)], round(slowest_s / min(seconds), 2)
        counts = counts_of(self.assignment, world)
        self._report(Balanced(step, counts, slowest, times, is_taken_back))

    def _begin_look(self) -> None:
        """Measure anew."""
        self._due = self._paces = self._committed_at = None
        self._parts.clear()
        self._steps.clear()
