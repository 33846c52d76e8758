"""The end of a launch that its workers come to together: by an order to stop, or with the script.

*An order to stop* whose launch does not come to its next step in time:

| moment | what is done |
|---|---|
| an order to stop | the workers stop at the next step, by agreement; nothing is done here |
| ``_PATIENCE_S`` later | all workers are asked to halt: none changes its state any more |
| all have answered | those with the newest state save it by order, each its part |
| the save is durable, or has failed | all leave |

A worker that does not answer hangs in code that never lets a thread of Python run, or is stopped.
It is killed, and the others save without it.  `recovery.launch` decides who saves what.

*The end of the script.*  A worker whose script has ended waits until all have come so far.  If
another worker begins a training that the first will never come to, both would wait for ever.
Then the launch ends with an error of the script, in the name of each of its workers.  So it is no
death, and no relaunch follows.  After an order to stop it is a stop: the end of the last
common training has a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.recovery.detector import ScriptView, find_diverged
from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import WorkerFailed, WorkerStopped
from holdfast.recovery.launch import Halted, HaltPlan, Held, plan_halt
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.hosted_worker import HostedWorker
from holdfast.runtime.system.worker_status import HaltOrder, Phase, RequestFlag

_PATIENCE_S = 3.0
"""So long a launch has to come to its next step: most do at once, and may close what is open."""
_PATIENCE_WITH_SCRIPT_S = 4.0
"""The same outside of a training: nothing is lost meanwhile, and the script may come to its end."""
_ANSWERED_WITHIN_S = 3.0
"""A worker whose heart beats answers at once, unless it changes its state just now."""
_CHANGED_WITHIN_S = 60.0
"""So long a change of the state may take, such as a copy that waits for its memory."""

_OF_TRAINING = (Phase.RESTORING, Phase.COMPILING, Phase.TRAINING, Phase.REPAIRING)
_KIND = "ScriptsApart"
"""The kind of the error, which no Python exception has."""
_WHY = "its launch has ended: the workers train different numbers of times"

Tell = Callable[[WorkerStopped | WorkerFailed], None]


class Halting:
    """The order to stop that a launch has, from the order to the end of its workers."""

    def __init__(self, tell_report: Tell, host_of: Mapping[WorkerId, str]) -> None:
        """Take the way to tell a report of a worker, and the name of each worker's host."""
        self._tell_report = tell_report
        self._host_of = host_of
        self._since: float | None = None
        self._asked_at: float | None = None
        self._beats: dict[WorkerId, int] = {}
        self._plan: HaltPlan | None = None
        self._is_leaving = False

    @property
    def is_halting(self) -> bool:
        """Whether the workers were asked to halt: then they wait for nobody, and stand still."""
        return self._asked_at is not None

    def order(self, now: float) -> None:
        """Take note that the launch was told to stop, or that its training has done so."""
        if self._asked_at is None:
            self._since = now

    def poll(self, living: Sequence[HostedWorker], now: float) -> None:
        """Go on with the order; ``living`` are the workers that were not killed."""
        if self._since is None or not living:
            return
        if self._asked_at is None:
            if now - self._since >= _patience_s(living):
                self._ask(living, now)
            return
        waited_s = now - self._asked_at
        lost = [h for h in living if h.halted is None and self._is_lost(h, waited_s)]
        if len(lost) == len(living):
            self._give_up(lost)
        for hosted in lost:
            hosted.kill("it did not answer the order to stop")
        answered = [hosted for hosted in living if hosted.halted is not None]
        if len(answered) + len(lost) == len(living) and answered and not self._is_leaving:
            self._go_on(answered)

    def _ask(self, living: Sequence[HostedWorker], now: float) -> None:
        self._asked_at = now
        self._beats = {hosted.worker: hosted.page.counter for hosted in living}
        for hosted in living:
            hosted.page.is_halt_asked = True

    def _is_lost(self, hosted: HostedWorker, waited_s: float) -> bool:
        """Return whether a worker has not answered in time; on several hosts a link may be slow."""
        beats = hosted.page.counter != self._beats.get(hosted.worker)
        is_patient = beats or len(set(self._host_of.values())) > 1
        return waited_s > (_CHANGED_WITHIN_S if is_patient else _ANSWERED_WITHIN_S)

    def _give_up(self, killed: Sequence[HostedWorker]) -> None:
        """Say for workers that were all killed that they have stopped."""
        step = max(hosted.page.step for hosted in killed)
        words = (
            f"stopped at step {step}: no worker answered the order to stop, so what came after "
            "the newest checkpoint is lost"
        )
        self._tell_report(WorkerStopped(killed[0].worker, step, words))

    def _go_on(self, halted: Sequence[HostedWorker]) -> None:
        """Order the save, or the end once the save is over; a death begins the save anew."""
        by_worker = {hosted.worker: hosted for hosted in halted}
        if self._plan is None or not by_worker.keys() >= set(self._plan.savers):
            attempt = 0 if self._plan is None else self._plan.attempt
            self._plan = plan_halt([_view_of(hosted, attempt) for hosted in halted], self._host_of)
            self._order_save(self._plan, by_worker)
        savers = [by_worker[worker] for worker in self._plan.savers]
        if self._plan.attempt and any(hosted.halt_failure is None for hosted in savers):
            return
        self._is_leaving = True
        self._tell_end(self._plan, savers, halted)
        for hosted in halted:
            hosted.page.order_halted(HaltOrder())

    def _order_save(self, plan: HaltPlan, halted: Mapping[WorkerId, HostedWorker]) -> None:
        if not plan.attempt:
            return
        for worker, part in plan.savers.items():
            halted[worker].halt_failure = None
            halted[worker].page.order_halted(HaltOrder(plan.attempt, part))

    def _tell_end(
        self, plan: HaltPlan, savers: Sequence[HostedWorker], halted: Sequence[HostedWorker]
    ) -> None:
        card = savers[0].halted
        assert card is not None
        failure = next((hosted.halt_failure for hosted in savers if hosted.halt_failure), "")
        if failure:
            message = (
                f"step {card.step} could not be saved: {failure}; run again: the run goes on "
                "from its newest checkpoint"
            )
            for hosted in halted:
                self._tell_report(
                    WorkerFailed(hosted.worker, "StoppedEarly", message, "", ExitCode.STOPPED_EARLY)
                )
            return
        words = card.words
        if plan.attempt:
            words = f"saved step {card.step}" + (words and f"; {words}")
        for hosted in savers:
            self._tell_report(WorkerStopped(hosted.worker, card.step, words))


def _patience_s(living: Sequence[HostedWorker]) -> float:
    """Return how long the workers may go on after the order."""
    phases = {hosted.page.phase for hosted in living}
    if Phase.SAVING in phases:
        return float("inf")  # all agree, and save: that has a bound of its own
    return _PATIENCE_S if phases & set(_OF_TRAINING) else _PATIENCE_WITH_SCRIPT_S


def _view_of(hosted: HostedWorker, attempt: int) -> Halted:
    card = hosted.halted
    assert card is not None
    held = None
    if card.version >= 0:
        held = Held(card.version, card.is_settled, hosted.page.generation)
    return Halted(hosted.worker, held, max(card.saves, attempt), card.is_saved)


def look_at_ends(
    hosted: Sequence[HostedWorker],
    workers: Sequence[WorkerId],
    tell_report: Tell,
) -> bool:
    """Let the workers of a launch leave, or end them, or wait for those that may still come.

    ``workers`` are all of the launch, also those that have died.  True if those that live leave.
    """
    living = [one for one in hosted if not one.is_condemned]
    apart = find_diverged(ScriptView(one.worker, one.trainings, one.is_at_end) for one in living)
    if apart is not None:
        _end(*apart, living, workers, tell_report)
        return False
    if not all(one.is_at_end for one in living):
        return False
    for one in living:
        one.may_leave = True
    return bool(living)


def _end(
    script: ScriptView,
    why: str,
    living: Sequence[HostedWorker],
    workers: Sequence[WorkerId],
    tell_report: Tell,
) -> None:
    """Tell why the launch ends, and kill its workers, which wait for each other."""
    ended = next(one for one in living if one.worker == script.worker)
    is_stopping = any(RequestFlag.STOP in one.page.requests for one in living)
    if is_stopping and script.begun:
        tell_report(WorkerStopped(ended.worker, ended.page.step))
    else:
        for worker in workers:
            tell_report(WorkerFailed(worker, _KIND, why, "", ExitCode.PROGRAM_FAILED))
    for one in living:
        one.kill(_WHY)
