"""One launch as its head sees it: what its end means, its bounds, and who saves in a halt.

Theory of the bounds.  Nothing that a launch waits for can be trusted to come: a pool may hang in
an import, mpiexec before its first rank, a killed process in the kernel, a worker in its last
save.  So each situation of a launch has a bound, and the bound is an event of the job like any
other: ``LaunchOverdue``.  The table of `recovery.job` says what follows.

| situation | begins | bound |
|---|---|---|
| warming | with the launch, while the pool imports | 900 s |
| joining | when the pool is warm, until every worker has initialised MPI | 180 s |
| stopping | when the workers were asked to stop | ``grace_s``, if the user gave one |
| leaving | when a worker has stopped to make room for a launch of all | 120 s |
| ending | when the launch was killed | 120 s |

A clock that is seldom looked at is late, never early: a head that was stopped itself
adds at most 5 s to a situation at each look, however long it was away.

Theory of a halt.  An order to stop is obeyed at the next step, by agreement.  If that does not come
within seconds, because a script validates, sleeps or hangs, the workers are *halted*: none of them
changes its state any more.  Each holds a whole state, and the newest of these is the result of the
last applied step.  So nobody has to be waited for.  Those that hold the newest state save it
together, each its share, and no worker needs a word of MPI for it.  If they live on several hosts,
those on one host do.

A worker is *settled* when the callbacks after its last transaction have run and were agreed on.
Before that it holds the state as it was before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.recovery.detector import counted_s
from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import (
    CheckpointCommitted,
    End,
    Event,
    LaunchOverdue,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.placement import SavePart, save_parts
from holdfast.recovery.world import WorkerId

Sight = (
    WorkerJoined
    | WorldFormed
    | CheckpointCommitted
    | WorkerFailed
    | WorkerCompleted
    | WorkerStopped
    | WorkerExited
)

KILLED_WITH_ITS_LAUNCH = "killed with its launch"
"""The cause of a death that ends a launch which was lost before."""

_UNTRAINED = End(
    ExitCode.PROGRAM_FAILED,
    "the script ended, and its own process has trained nothing: it has to call model.fit(...), or "
    "Trainer(...).run(), itself; what its own loops, or processes that it starts, train is no part "
    "of the run",
)


@dataclass(frozen=True, slots=True)
class LaunchView:
    """One launch, from its start on; each event makes a new value."""

    workers: tuple[WorkerId, ...]
    generation: int
    world: tuple[WorkerId, ...]
    """Members of the newest world; those of the launch until one was formed."""
    joined: frozenset[WorkerId] = frozenset()
    failures: tuple[WorkerFailed, ...] = ()
    completions: tuple[WorkerCompleted, ...] = ()
    stops: tuple[WorkerStopped, ...] = ()
    exits: dict[WorkerId, WorkerExited] = field(default_factory=dict)
    checkpoints: int = 0
    """How many steps its workers have reported as committed."""
    saved_step: int = -1
    was_formed: bool = False
    """Whether a world was ever agreed on: before that no worker has trained."""
    has_world_saved: bool = False
    """Whether the newest world has committed a checkpoint: the disk takes its last one, too."""
    is_renewing: bool = False
    """Whether its workers were asked to make room for a prepared launch."""

    @staticmethod
    def of(workers: tuple[WorkerId, ...], generation: int) -> LaunchView:
        """Return the view of a launch that has just begun."""
        return LaunchView(workers, generation, workers)

    def concerns(self, event: Event) -> bool:
        """Return whether ``event`` is about this launch, not a late report of an older one."""
        if isinstance(event, WorldFormed):
            return set(event.workers) <= set(self.workers)
        worker = getattr(event, "worker", None)
        return worker is None or worker in self.workers

    @property
    def was_renewed(self) -> bool:
        """Whether its workers have made room for a prepared launch."""
        return self.is_renewing and bool(self.stops)

    @property
    def is_after_training(self) -> bool:
        """Whether a training is complete, and no later one has made a checkpoint."""
        return self.first is not None and self.saved_step <= self.first.step

    @property
    def is_up(self) -> bool:
        """Whether every worker has initialised MPI."""
        return self.joined == frozenset(self.workers)

    @property
    def is_all_clean(self) -> bool:
        """Whether every worker of the newest world has left by agreement."""
        return all(w in self.exits and self.exits[w].is_clean for w in self.world)

    @property
    def first(self) -> WorkerCompleted | None:
        """The completion of the worker that does the rest of the script for all, None so far.

        A script may train several times; the last time counts.
        """
        firsts = [seen for seen in self.completions if seen.is_first]
        return max(firsts, key=lambda seen: seen.step, default=None)

    @property
    def first_has_left(self) -> bool:
        """Whether that worker has come to the end of the script and left by agreement."""
        end = None if self.first is None else self.exits.get(self.first.worker)
        return end is not None and end.is_clean

    @property
    def failure_of_first(self) -> WorkerFailed | None:
        """The error of such a worker's script after a training, None if there was none.

        The others may have gone on with another training, and completed it without that worker.
        """
        told = (f for f in self.failures if not f.is_death and not f.is_in_training)
        return next((f for f in told if self._was_first(f.worker)), None)

    @property
    def common_failure(self) -> WorkerFailed | None:
        """The error that ended every worker of the newest world, None if they differ in kind.

        Before a world was agreed on, the workers that failed speak for all. The others were
        killed together with the launch, so no worker got any further. A last survivor does
        not speak for those that died of something else: its error may be its own.
        """
        by_worker = {f.worker: f for f in self.failures if not f.is_death}
        speakers = self.world if self.was_formed else tuple(by_worker)
        if self.was_formed and len(self.world) == 1:
            speakers = self.workers
        found = [by_worker[worker] for worker in speakers if worker in by_worker]
        if len(found) < len(speakers) or len({failure.error_type for failure in found}) != 1:
            return None
        return found[0]

    @property
    def causes(self) -> str:
        """The ends of the members of the newest world, in a few words; first causes first."""
        ends = (self.exits[worker] for worker in self.world if worker in self.exits)
        unclean = [end for end in ends if not end.is_clean]
        unclean.sort(key=lambda end: self._cause(end).startswith(KILLED_WITH_ITS_LAUNCH))
        return ", ".join(f"worker {e.worker}: {self._cause(e)}" for e in unclean) or (
            "no worker died" if self.exits else "no worker started"
        )

    def seeing(self, event: Sight) -> LaunchView:
        """Return the view after ``event``."""
        match event:
            case WorkerJoined(worker):
                return replace(self, joined=self.joined | {worker})
            case WorldFormed(generation, workers):
                if generation < self.generation:
                    return self  # an old report that came late
                return replace(
                    self,
                    generation=generation,
                    world=workers,
                    was_formed=True,
                    has_world_saved=False,
                )
            case CheckpointCommitted(worker, step):
                return replace(
                    self,
                    checkpoints=self.checkpoints + (step > self.saved_step),
                    saved_step=max(step, self.saved_step),
                    # a late word of a worker that has died since is of an older world
                    has_world_saved=self.has_world_saved or worker in self.world,
                )
            case WorkerExited(worker):
                return replace(self, exits=self.exits | {worker: event})
            case _:
                return self._told(event)

    def _told(self, ending: WorkerFailed | WorkerCompleted | WorkerStopped) -> LaunchView:
        match ending:
            case WorkerFailed():
                return replace(self, failures=(*self.failures, ending))
            case WorkerCompleted():
                return replace(self, completions=(*self.completions, ending))
            case WorkerStopped():
                return replace(self, stops=(*self.stops, ending))

    def _was_first(self, worker: WorkerId) -> bool:
        """Return whether ``worker`` was the first one when it completed its last training."""
        its = [seen for seen in self.completions if seen.worker == worker]
        return bool(its) and bool(max(its, key=lambda seen: seen.step).is_first)

    def _cause(self, seen: WorkerExited) -> str:
        """Return the worker's own message about its end, else the end of its process."""
        said = [f.message_with_kind for f in self.failures if f.worker == seen.worker]
        return said[-1].partition("\n")[0] if said else seen.cause


def way_back(*, has_checkpoint: bool) -> str:
    """Return where the run begins when it is run again, in words."""
    if has_checkpoint:
        return "the run resumes from its newest checkpoint"
    return "nothing was saved, so the run begins again at step 0"


def conclude(
    view: LaunchView, stop_code: ExitCode | None, *, has_checkpoint: bool = True
) -> End | None:
    """Return the end of the job, or None if the launch was lost and may be relaunched.

    The workers' reports count, never mpiexec's exit code.  The rules, in order of
    precedence:

    1. workers completed the same step with different bytes: the result must not be used;
    2. all workers of the last world raised the same kind of error: it is the
       program's, and would happen again; it is not that the disk took no last checkpoint of
       workers that were to make room: they would train on, had nobody asked them;
    3. the first worker has completed a training, and then its script raised: only that
       worker did the rest of the script, and would fail again;
    4. a worker has stopped on request; if only to make room, a launch of all workers follows;
    5. the first worker has completed, and has reached the end of the script; if it died
       before that end, the rest of the script is still to be done;
    6. all workers have left by agreement without training, which is an error of the script;
    7. the job was told to stop and reached no checkpoint.

    ``has_checkpoint`` tells whether the run has any, of this launch or an older one.
    """
    for completion in view.completions:
        digests = {str(c.sha256) for c in view.completions if c.step == completion.step}
        if len(digests) > 1:
            return _contradicted(completion.step, sorted(digests))
    failure = view.common_failure or view.failure_of_first
    made_no_room = view.is_renewing and stop_code is None
    if failure is not None and not (made_no_room and failure.exit_code == ExitCode.STOPPED_EARLY):
        reason = failure.message_with_kind
        return End(failure.exit_code, reason, failure.traceback, is_failure=True)
    if view.was_renewed and stop_code is None:
        return None
    end = _left(view)
    if end is None and stop_code is not None:
        return End(stop_code, f"told to stop; {way_back(has_checkpoint=has_checkpoint)}")
    return end


def _left(view: LaunchView) -> End | None:
    """Return the end of a job whose workers ended by themselves, None for any other job."""
    if view.stops:  # of a later training of the script, if one is complete
        return End(ExitCode.STOPPED_EARLY, f"{view.stops[0].describe()}; run again to go on")
    if view.first_has_left:
        last = max(view.completions, key=lambda completion: completion.step)
        return End(ExitCode.DONE, f"completed step {last.step}, state sha256 {last.sha256}")
    if view.is_all_clean and not view.completions:
        return _UNTRAINED
    return None


def _contradicted(step: int, digests: list[str]) -> End:
    return End(
        ExitCode.RECOVERY_IMPOSSIBLE,
        f"the workers completed step {step} with {len(digests)} different states: {digests}; "
        "the memory or the arithmetic of one of them is wrong: do not use the result",
    )


class Situation(Enum):
    """What a launch is waiting for."""

    WARMING = "its warm process has not imported everything"
    JOINING = "its workers have not all initialised MPI"
    RUNNING = "nothing"
    STOPPING = "its workers have not stopped with a checkpoint"
    LEAVING = "its workers, which have stopped to make room, have not left the script"
    ENDING = "its processes have not ended"


_LIMITS_S = {
    Situation.WARMING: 900.0,
    Situation.JOINING: 180.0,
    Situation.LEAVING: 120.0,
    Situation.ENDING: 120.0,
}
_LONGEST_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class LaunchClock:
    """The time that the newest launch has spent in its situation; each look makes a new clock.

    ``grace_s`` is how long it may take to stop; None is no bound.
    """

    grace_s: float | None
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
        passed_s = counted_s(self.looked_at, now, _LONGEST_LOOK_S)
        return replace(self, spent_s=self.spent_s + passed_s, looked_at=now)

    @property
    def overdue(self) -> LaunchOverdue | None:
        """The event that the bound has passed, None if it has not."""
        is_stopping = self.situation is Situation.STOPPING
        limit_s = self.grace_s if is_stopping else _LIMITS_S.get(self.situation)
        if limit_s is None or self.spent_s <= limit_s:
            return None
        return LaunchOverdue(f"after {self.spent_s:.0f} s {self.situation.value}")


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """How new a state is: the larger one is the newer one."""

    version: int
    is_settled: bool
    generation: int
    """That of the worker's world; only workers of one world save together."""


@dataclass(frozen=True, slots=True)
class Halted:
    """A worker that is halted: what it holds, and how many saves it has begun."""

    worker: WorkerId
    held: Held | None
    """None while it gets the state of another worker."""
    saves: int
    is_saved: bool
    """Whether a checkpoint holds the same, or there is nothing to hold."""


@dataclass(frozen=True, slots=True)
class HaltPlan:
    """The parts of the workers that save, in rank order, and the number of their save."""

    savers: Mapping[WorkerId, SavePart]
    attempt: int
    """0 if nothing has to be saved."""


def plan_halt(halted: Sequence[Halted], host_of: Mapping[WorkerId, str]) -> HaltPlan:
    """Return who saves what ``halted`` workers hold."""
    newest = max((one.held for one in halted if one.held is not None), default=None)
    holders = {one.worker: one for one in halted if one.held == newest}
    parts = save_parts(sorted(holders), host_of)
    if newest is None or all(one.is_saved for one in holders.values()):
        return HaltPlan(parts, 0)
    return HaltPlan(parts, max(one.saves for one in halted) + 1)
