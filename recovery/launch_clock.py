"""The bounds of a launch: how long it may start, end, and stop, before it is ended.

Theory.  Nothing that a launch waits for can be trusted to come: a pool may hang in an import,
mpiexec before its first rank, a killed process in the kernel, a worker in its last save.  So
each situation of a launch has a bound, and the bound is an event of the job like any other:
``LaunchOverdue``.  The table of `recovery.job` says what follows.

| situation | begins | bound |
|---|---|---|
| warming | with the launch, while the pool imports | ``warm_s`` |
| joining | when the pool is warm, until every worker has initialised MPI | ``join_s`` |
| stopping | when the workers were asked to stop | ``grace_s``, if the user gave one |
| leaving | when a worker has stopped to make room for a launch of all | ``leave_s`` |
| ending | when the launch was killed | ``end_s`` |

A clock that is seldom looked at is late, never early: a supervisor that was stopped itself
adds at most ``longest_look_s`` to a situation at each look, however long it was away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from holdfast.recovery.detector import counted_s
from holdfast.recovery.event import LaunchOverdue
from holdfast.recovery.world import WorkerId


class Situation(Enum):
    """What a launch is waiting for."""

    WARMING = "its warm process has not imported everything"
    JOINING = "its workers have not all initialised MPI"
    RUNNING = "nothing"
    STOPPING = "its workers have not stopped with a checkpoint"
    LEAVING = "its workers, which have stopped to make room, have not left the script"
    ENDING = "its processes have not ended"


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """The seconds that each situation may last; ``grace_s`` None is no bound."""

    warm_s: float = 900.0
    join_s: float = 180.0
    end_s: float = 120.0
    leave_s: float = 120.0
    grace_s: float | None = None

    def of(self, situation: Situation) -> float | None:
        """Return the bound of ``situation``, None if it has none."""
        return {
            Situation.WARMING: self.warm_s,
            Situation.JOINING: self.join_s,
            Situation.STOPPING: self.grace_s,
            Situation.LEAVING: self.leave_s,
            Situation.ENDING: self.end_s,
        }.get(situation)


@dataclass(frozen=True, slots=True)
class LaunchClock:
    """The time that the newest launch has spent in its situation; each look makes a new clock."""

    limits: LaunchLimits
    longest_look_s: float = 5.0
    launch: tuple[WorkerId, ...] = ()
    """The workers of the launch: no two launches share one."""
    situation: Situation = Situation.RUNNING
    spent_s: float = 0.0
    looked_at: float | None = None

    def observe(
        self, launch: tuple[WorkerId, ...], situation: Situation, now: float
    ) -> LaunchClock:
        """Return the clock after a look at the ``launch`` of these workers at ``now``."""
        if (launch, situation) != (self.launch, self.situation):
            return replace(self, launch=launch, situation=situation, spent_s=0.0, looked_at=now)
        passed_s = counted_s(self.looked_at, now, self.longest_look_s)
        return replace(self, spent_s=self.spent_s + passed_s, looked_at=now)

    @property
    def overdue(self) -> LaunchOverdue | None:
        """The event that the bound has passed, None if it has not."""
        limit_s = self.limits.of(self.situation)
        if limit_s is None or self.spent_s <= limit_s:
            return None
        return LaunchOverdue(f"after {self.spent_s:.0f} s {self.situation.value}")
