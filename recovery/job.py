"""The course of a job: one table for launches, relaunches and the end; and its budget.

Theory.  A job is a sequence of launches.  The workers handle deaths inside a launch
themselves, as long as one of them lives.  The head acts on three events only: a
death before MPI is up, the end of a launch, and the user's request to stop.  (Before MPI
is up, no worker could go on after a death.)

    LAUNCHING --all joined--> RUNNING --launch ended--> LAUNCHING or OVER
        └──a death──> ENDING --launch ended--> LAUNCHING or OVER

A launch of another size may be wanted while one trains: workers were lost and have a place again
(`recovery.regrow`), or a user asked for it.  It is *prepared* beside the other: its workers
initialise MPI, and wait before their script.  Then those that train stop with a checkpoint, and the
prepared launch takes their place.  Nothing is lost by it, so the budget is not charged.  Workers
are asked to stop only after a commit of their world: the disk takes checkpoints then, and the last
one will not fail.  What fails in a preparation costs the launch that trains nothing.

A launch that follows one without a checkpoint is as large as the last world.  It is smaller if the
world that made the newest checkpoint was.

Each wait for such an event has a bound (`recovery.launch`).  A launch that is overdue
is killed; one that does not even end then is given up.

Invariant: a worker id is never used twice, and no two launches share a generation.  So
no leftover of an old launch can be taken for the new one's.  Reports of worlds can be
lost together with their senders.  So a launch of n workers gets n generations: each of
its worlds but the first costs at least one worker.

An event of an older launch changes nothing.  An event that the table does not list for
the state of the job is refused.

``handle`` either returns the commands and has moved on, or raises and has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from holdfast.recovery.errors import ExitCode, IllegalTransition
from holdfast.recovery.event import (
    AbandonLaunch,
    AskToSave,
    AskToStop,
    CheckpointCommitted,
    Command,
    DropPrepared,
    End,
    Event,
    HostBack,
    HostLost,
    KillLaunch,
    Launch,
    LaunchEnded,
    LaunchOverdue,
    LaunchPrepared,
    LaunchWanted,
    PreparationFailed,
    Prepare,
    Renew,
    RunDirectoryLost,
    ScaleAsked,
    StopAsked,
    TimeIsShort,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.launch import LaunchView, Sight, conclude, way_back
from holdfast.recovery.world import WorkerId

CHECKPOINTS_OF_A_REFUND = 3
"""So many checkpoints of one launch pay one earlier relaunch back."""

Commands: TypeAlias = tuple[Command, ...]
_TOLD = (WorkerFailed, WorkerCompleted, WorkerStopped)
_PROGRESS = (WorldFormed, CheckpointCommitted)
_OF_PLANS = (LaunchPrepared, LaunchWanted)


class JobState(Enum):
    """The state of the job."""

    READY = "ready"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class JobTerms:
    """The user's terms: the number of workers, and the limits of recovery."""

    workers: int
    """How many a launch begins with; the spares count."""
    max_restarts: int
    can_shrink: bool
    first_generation: int = 1
    has_checkpoint: bool = False
    """Whether the run has one when the job begins."""
    spares: int = 0

    slots: int | None = None
    """How many workers the job's hosts take; None: as many as are asked for."""

    @property
    def may_go_on(self) -> bool:
        """Whether a launch goes on after a death; that of one worker leaves nobody who waits."""
        return self.can_shrink or self.workers == 1

    def fitting(self, workers: int) -> int:
        """Return how many of ``workers`` have a place."""
        return workers if self.slots is None else min(workers, self.slots)


class JobMachine:
    """The head's decisions: feed it every event, and carry out the commands it returns."""

    def __init__(self, terms: JobTerms) -> None:
        self._terms = terms
        self._budget = RestartBudget(terms.max_restarts)
        self._state = JobState.READY
        self._view = LaunchView.of((), terms.first_generation - 1)
        self._next_id = 0
        self._next_generation = terms.first_generation
        self._relaunches = 0
        self._stop_code: ExitCode | None = None
        self._lost: End | None = None
        """The end of a job whose run directory is its own no more."""
        self._is_short_of_time = False
        self._has_checkpoint = terms.has_checkpoint
        self._has_lost_host_early = False
        """Whether a host was lost before the newest launch was up: no fault of the script."""
        self._fits = terms.workers  # so many have made the newest checkpoint
        self._planned: Launch | None = None
        """A launch that is prepared beside the one that trains."""
        self._is_planned_ready = False
        self._asked: int | None = None
        """How many workers a user has asked for since, until a launch has them."""

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self._state

    @property
    def is_stopping(self) -> bool:
        """Whether the end of the job was asked for."""
        return self._stop_code is not None or self._lost is not None

    @property
    def is_short_of_time(self) -> bool:
        """Whether no launch follows any more before the time of the job is up."""
        return self._is_short_of_time

    @property
    def view(self) -> LaunchView:
        """The head's view of the newest launch."""
        return self._view

    def start(self) -> Commands:
        """Return the first launch.

        Raises:
            IllegalTransition: the job was started before; nothing changed.
        """
        if self._state is not JobState.READY:
            raise IllegalTransition(f"a job that is {self._state.value} cannot be started")
        return self._launch(self._terms.workers, "the job begins")

    def take_over(self, launch: Launch, prepared: int = 0) -> None:
        """Go on with a launch of another head, which has died with its workers.

        ``prepared`` workers were made beside it since.

        Raises:
            IllegalTransition: the job was started before; nothing changed.
        """
        if self._state is not JobState.READY:
            raise IllegalTransition(f"a job that is {self._state.value} takes no launch over")
        self._budget = RestartBudget(self._terms.max_restarts, launch.spent)
        self._relaunches = launch.relaunch
        self._next_id = max(launch.workers) + 1 + prepared
        self._next_generation = launch.generation + len(launch.workers) + prepared
        self._view = LaunchView.of(launch.workers, launch.generation)
        self._state = JobState.LAUNCHING

    def handle(self, event: Event) -> Commands:
        """Return the commands that follow from ``event``.

        Raises:
            IllegalTransition: the table does not list it for this state; nothing changed.
        """
        if self._state in _ALIVE and not self._view.concerns(event):
            return ()
        action = TRANSITIONS.get((self._state, type(event)))
        if action is None:
            raise IllegalTransition(f"a job that is {self._state.value} cannot see {event}")
        return action(self, event)

    def _note(self, event: Event) -> Commands:
        """Keep it in the view of the launch."""
        assert isinstance(event, Sight)
        self._view = self._view.seeing(event)
        if isinstance(event, CheckpointCommitted):
            self._fits = len(self._view.world)
        return ()

    @property
    def is_rescaled(self) -> bool:
        """Whether a user has asked for another number of workers, and no launch has them yet."""
        asked = self._asked
        return asked is not None and self._terms.fitting(asked) != len(self._view.world)

    @property
    def may_plan(self) -> bool:
        """Whether a launch of another size may follow the one that trains."""
        is_ending = self.is_stopping or self._view.is_renewing or self._is_short_of_time
        is_training = self._state is JobState.RUNNING and not self._view.is_after_training
        return is_training and self._planned is None and not is_ending

    @property
    def active(self) -> tuple[int, int]:
        """How many workers train, and how many would after a launch of all; no spares."""
        most = self._terms.workers - self._terms.spares
        fitting = self._terms.fitting(self._terms.workers)
        return min(len(self._view.world), most), min(fitting, most)

    def _scale(self, event: Event) -> Commands:
        """Remember it; a launch that is prepared with another size is dropped."""
        assert isinstance(event, ScaleAsked)
        asked = event.workers + self._terms.spares
        self._terms = replace(self._terms, workers=asked)
        is_there = asked == len(self._view.world) and not self._view.is_renewing
        self._asked = None if is_there else asked
        return self._drop()

    def _plan(self, event: Event) -> Commands:
        """Prepare a launch beside the one that trains, whose world is asked for a checkpoint."""
        assert isinstance(event, LaunchWanted)
        count = self._terms.fitting(self._terms.workers)
        if not count or not self.may_plan:
            return ()
        self._planned = self._next_launch(count, event.reason, self._relaunches + 1)
        self._is_planned_ready = False
        ask = () if self._view.has_world_saved else (AskToSave(),)
        return (Prepare(self._planned), *ask)

    def _ready(self, event: Event) -> Commands:
        """Make room for the prepared launch, now or after the next commit."""
        assert isinstance(event, LaunchPrepared)
        if self._planned is not None and event.generation == self._planned.generation:
            self._is_planned_ready = True
        return self._make_room()

    def _make_room(self) -> Commands:
        """Ask the workers to make room for a launch that is ready, once their world has saved."""
        planned, view = self._planned, self._view
        is_ending = self.is_stopping or view.is_renewing or view.is_after_training
        if planned is None or not self._is_planned_ready or is_ending or not view.has_world_saved:
            return ()
        self._view = replace(view, is_renewing=True)
        return (Renew(planned.reason),)

    def _forget_plan(self, event: Event) -> Commands:
        """Forget a launch that could not be prepared."""
        assert isinstance(event, PreparationFailed)
        if self._planned is not None and event.generation == self._planned.generation:
            self._planned = None
        return ()

    def _ignore(self, _event: Event) -> Commands:
        """Keep nothing: what was prepared for is over."""
        return ()

    def _drop(self) -> Commands:
        """Drop a prepared launch for which nobody was asked to make room."""
        if self._planned is None or self._view.is_renewing:
            return ()
        self._planned = None
        return (DropPrepared(),)

    def _form(self, event: Event) -> Commands:
        """Keep it; a world that is to make room has to save first."""
        self._note(event)
        return () if self._planned is None else (AskToSave(),)

    def _commit(self, event: Event) -> Commands:
        """Keep it; ask workers to make room for a launch that is ready."""
        self._note(event)
        return self._make_room()

    def _change_slots(self, event: Event) -> Commands:
        """Remember it: a launch has no more workers than the hosts take."""
        assert isinstance(event, HostLost | HostBack)
        before = self._terms.slots
        if event.slots is None:
            return ()
        self._terms = replace(self._terms, slots=event.slots)
        if self._state is JobState.LAUNCHING and before is not None and event.slots < before:
            self._has_lost_host_early = True
        return ()

    def _hurry(self, _event: Event) -> Commands:
        """Remember it: no launch follows any more before the time is up."""
        self._is_short_of_time = True
        return self._drop()

    def _join(self, event: Event) -> Commands:
        """Keep it; when all have joined, the job is running."""
        self._note(event)
        if self._view.is_up:
            self._state = JobState.RUNNING
        return ()

    def _die_early(self, event: Event) -> Commands:
        """Keep it; unless it left by agreement MPI cannot come up any more: kill, ending."""
        assert isinstance(event, WorkerExited)
        self._note(event)
        if event.is_clean:
            return ()
        return self._kill(f"worker {event.worker} died before MPI was up ({event.cause})")

    def _exit(self, event: Event) -> Commands:
        """Keep it; after a death in a job whose worlds do not shrink: kill, ending."""
        assert isinstance(event, WorkerExited)
        self._note(event)
        if event.is_clean or self._terms.may_go_on:
            return ()
        return self._kill(f"worker {event.worker} died ({event.cause}) and worlds do not shrink")

    def _ask_to_stop(self, event: Event) -> Commands:
        """Ask the workers to stop; the second time, or before MPI is up: kill, ending.

        Before MPI is up no worker has trained since the newest checkpoint: nothing is lost.
        """
        assert isinstance(event, StopAsked)
        if self._state is JobState.LAUNCHING:
            self._stop_code = ExitCode.STOPPED_EARLY
            return self._kill("the job was told to stop before it trained")
        if self._stop_code is not None:
            self._stop_code = event.exit_code
            return self._kill("the job was told to stop at once", is_urgent=True)
        self._stop_code = event.exit_code
        return (*self._drop(), AskToStop())

    def _lose_directory(self, event: Event) -> Commands:
        """Kill the launch, ending: nothing can be saved any more, and no launch follows."""
        assert isinstance(event, RunDirectoryLost)
        self._lost = self._lost or End(event.exit_code, event.reason)
        if self._state is JobState.ENDING:
            return ()
        return self._kill("its run directory is its own no more", is_urgent=True)

    def _cut_short(self, event: Event) -> Commands:
        """Kill a launch that takes too long, ending."""
        assert isinstance(event, LaunchOverdue)
        return self._kill(event.reason)

    def _abandon(self, event: Event) -> Commands:
        """Give the launch up: killed or not, its processes do not end."""
        assert isinstance(event, LaunchOverdue)
        return (AbandonLaunch(event.reason),)

    def _keep_ending(self, _event: Event) -> Commands:
        """Remember it: no relaunch will follow."""
        self._stop_code = self._stop_code or ExitCode.STOPPED_EARLY
        return ()

    def _conclude(self, event: Event) -> Commands:
        """Give the verdict: over, or the next launch if the budget allows it, else over."""
        assert isinstance(event, LaunchEnded)
        self._has_checkpoint |= self._view.checkpoints > 0
        end = self._lost or conclude(
            self._view, self._stop_code, has_checkpoint=self._has_checkpoint
        )
        if end is not None:
            return self._finish(end)
        if self._view.was_renewed:
            self._budget = self._budget.refund(self._view.checkpoints)
            return self._replace()
        causes = event.reason or self._view.causes
        before, checkpoints = self._budget, self._view.checkpoints
        if not self._has_lost_host_early:  # a host is lost twice at most
            self._budget = before.charge(checkpoints)
        if not self._budget.is_spent:
            return self._relaunch(causes)
        return self._finish(
            End(
                ExitCode.RECOVERY_IMPOSSIBLE,
                f"the last launch ended with {causes}; remove the cause, then run again: "
                f"{way_back(has_checkpoint=self._has_checkpoint)} "
                f"({before.refusal(checkpoints)})",
            )
        )

    def _finish(self, end: End) -> Commands:
        self._state = JobState.OVER
        return (end,)

    def _relaunch(self, reason: str) -> Commands:
        """Launch as many workers as the job began with, if the last launch got on."""
        self._relaunches += 1
        got_on = self._view.checkpoints > 0
        wanted = self._terms.workers if got_on else min(len(self._view.world), self._fits)
        return self._launch(wanted, reason)

    def _replace(self) -> Commands:
        """Let the prepared launch take the place of one that has made room."""
        planned = self._planned
        if planned is None:  # it was lost meanwhile
            return self._relaunch("a launch follows one that has made room")
        self._relaunches += 1
        return self._begin(replace(planned, spent=self._budget.spent))

    def _kill(self, reason: str, *, is_urgent: bool = False) -> Commands:
        self._state = JobState.ENDING
        self._planned = None  # it is killed, too
        return (KillLaunch(reason, is_urgent),)

    def _launch(self, wanted: int, reason: str) -> Commands:
        """Launch as many workers as are wanted and have a place; without any the job is over."""
        count = self._terms.fitting(wanted)
        if not count:
            way = way_back(has_checkpoint=self._has_checkpoint)
            words = f"no host is left that takes a worker ({reason})"
            return self._finish(
                End(
                    ExitCode.RECOVERY_IMPOSSIBLE,
                    f"{words}; see to the hosts, then run again: {way}",
                )
            )
        return self._begin(self._next_launch(count, reason, self._relaunches))

    def _next_launch(self, count: int, reason: str, relaunch: int) -> Launch:
        workers = tuple(WorkerId(self._next_id + index) for index in range(count))
        generation = max(self._next_generation, self._view.generation + 1)
        self._next_generation = generation + count
        self._next_id += count
        is_planned = relaunch > self._relaunches
        return Launch(
            generation, workers, relaunch, reason, self._budget.spent, is_renewal=is_planned
        )

    def _begin(self, launch: Launch) -> Commands:
        self._view = LaunchView.of(launch.workers, launch.generation)
        self._planned = None
        self._has_lost_host_early = False
        if self._asked is not None and self._terms.fitting(self._asked) == len(launch.workers):
            self._asked = None
        self._state = JobState.LAUNCHING
        return (launch,)


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """The relaunches that a job may make, and the charges so far; progress pays charges back."""

    limit: int
    spent: int = 0

    def charge(self, checkpoints: int) -> RestartBudget:
        """Return the budget after one more relaunch; the lost launch has committed checkpoints.

        A launch that committed none costs double: its cause will likely stop the next.  One
        that committed several pays earlier charges back: a job of months that goes on in
        spite of its losses does not end by their number.
        """
        return RestartBudget(self.limit, self._left(checkpoints) + _cost(checkpoints))

    def refund(self, checkpoints: int) -> RestartBudget:
        """Return the budget after a launch that was not lost, and has committed checkpoints."""
        return RestartBudget(self.limit, self._left(checkpoints))

    def refusal(self, checkpoints: int) -> str:
        """Return in words why another relaunch would cost more than is left."""
        cost = _cost(checkpoints)
        why = ", as the last launch made no checkpoint" if cost > 1 else ""
        return (
            f"the restart budget of {self.limit} allows no other relaunch: "
            f"{self._left(checkpoints)} is spent, and the next one costs {cost}{why}"
        )

    def _left(self, checkpoints: int) -> int:
        return max(0, self.spent - checkpoints // CHECKPOINTS_OF_A_REFUND)

    @property
    def is_spent(self) -> bool:
        """Whether more was charged than allowed, so that the job must end."""
        return self.spent > self.limit


def _cost(checkpoints: int) -> int:
    """Return the charge of a relaunch after a launch that has committed ``checkpoints``."""
    return 1 if checkpoints else 2


_Action: TypeAlias = Callable[[JobMachine, Event], Commands]
_NOT_RUNNING = (JobState.LAUNCHING, JobState.ENDING)
_ALIVE = (JobState.LAUNCHING, JobState.RUNNING, JobState.ENDING)

TRANSITIONS: MappingProxyType[tuple[JobState, type[Event]], _Action] = MappingProxyType(
    {(state, seen): JobMachine._note for state in _ALIVE for seen in _TOLD}
    | {(state, seen): JobMachine._note for state in _NOT_RUNNING for seen in _PROGRESS}
    | {(state, LaunchEnded): JobMachine._conclude for state in _ALIVE}
    | {(state, seen): JobMachine._change_slots for state in _ALIVE for seen in (HostLost, HostBack)}
    | {(state, TimeIsShort): JobMachine._hurry for state in _ALIVE}
    | {(state, ScaleAsked): JobMachine._scale for state in _ALIVE}
    | {(state, PreparationFailed): JobMachine._forget_plan for state in _ALIVE}
    | {(state, seen): JobMachine._ignore for state in _NOT_RUNNING for seen in _OF_PLANS}
    | {(state, RunDirectoryLost): JobMachine._lose_directory for state in _ALIVE}
    | {
        (JobState.LAUNCHING, WorkerJoined): JobMachine._join,
        (JobState.LAUNCHING, WorkerExited): JobMachine._die_early,
        (JobState.LAUNCHING, StopAsked): JobMachine._ask_to_stop,
        (JobState.LAUNCHING, LaunchOverdue): JobMachine._cut_short,
        (JobState.RUNNING, LaunchWanted): JobMachine._plan,
        (JobState.RUNNING, LaunchPrepared): JobMachine._ready,
        (JobState.RUNNING, WorldFormed): JobMachine._form,
        (JobState.RUNNING, CheckpointCommitted): JobMachine._commit,
        (JobState.RUNNING, WorkerExited): JobMachine._exit,
        (JobState.RUNNING, StopAsked): JobMachine._ask_to_stop,
        (JobState.RUNNING, LaunchOverdue): JobMachine._cut_short,
        (JobState.ENDING, WorkerJoined): JobMachine._note,
        (JobState.ENDING, WorkerExited): JobMachine._note,
        (JobState.ENDING, StopAsked): JobMachine._keep_ending,
        (JobState.ENDING, LaunchOverdue): JobMachine._abandon,
    }
)

DECIDED = frozenset(seen for _, seen in TRANSITIONS)
"""The events that decisions need; of others the machine knows nothing."""
