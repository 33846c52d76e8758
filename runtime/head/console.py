"""What the head says to a job's user and writes into its journal.

Each change is one line on stderr; the journal has the details.  A stderr that takes
nothing (its disk is full, its terminal is held, its pager is gone) never ends or delays a
job.  The journal says how many lines it has not taken.

The line of a death is short: the last lines of a worker have been there already.  The journal
has all of the evidence: limit, last lines, stacks, samples in hand.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.recovery.event import (
    LOST_WITH_ITS_HOST,
    End,
    Event,
    Launch,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerStopped,
    WorldFormed,
)
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head.job import Job
from holdfast.runtime.head.screen import ProgressLog
from holdfast.runtime.host.host_messages import LaunchOrder
from holdfast.runtime.run import events
from holdfast.runtime.run.entries import Entry, sentence_of
from holdfast.runtime.run.events import (
    AgentKilled,
    Epoch,
    FaultStruck,
    HeadFailed,
    JobEnded,
    Notice,
    OutputDropped,
    Paused,
    PreloadFailed,
    Recovery,
    Relaunch,
    Step,
    TakenOver,
    Warned,
    WorkerFenced,
    death_counts,
)
from holdfast.runtime.run.progress import brief, count
from holdfast.runtime.worker.stacks import users_trace

if TYPE_CHECKING:
    from holdfast.runtime.head.run_link import RunLink
    from holdfast.runtime.run.journal import Journal

_COUNTED = 1000
"""So many newest deaths are counted."""

_TRACE_LINES = 12
"""Of an exception that others survive."""

_OF_WORKERS = (WorldFormed, Epoch, WorkerCompleted, WorkerStopped, WorkerExited)
"""Events that several workers tell: the first one records them, or it is seen to above."""


class Teller:
    """Says sentences to the user of a job, and keeps what it tells in the journal."""

    def __init__(
        self, journal: Journal | RunLink, say: Callable[[str], None], *, is_quiet: bool = False
    ) -> None:
        self._journal = journal
        self.say = say
        self._is_quiet = is_quiet

    def inform(self, text: str) -> None:
        """Say something that nobody has to act on."""
        if not self._is_quiet:
            self.say(text)

    def tell(self, event: Event) -> None:
        """Say an event, and record it."""
        self.say(sentence_of(event))
        self._journal.record(event)


class JobConsole(Teller):
    """Writes the head's lines."""

    def __init__(
        self,
        job: Job,
        journal: RunLink,
        write: Callable[[bytes], None],
        progress: ProgressLog,
    ) -> None:
        options = job.config.options
        super().__init__(journal, self._say_in_a_line, is_quiet=options.quiet)
        self._write = write
        self._progress = progress
        self._is_verbose = options.verbose
        self._unsaid: list[WorkerExited] = []
        """Deaths by an exception, until it is known whether others go on."""
        self._traces: set[str] = set()
        """The exceptions that were shown, with their first lines at least."""
        self._failed: set[int] = set()
        """Workers whose error is known: others may go on, or all have it."""
        self._notices: set[str] = set()
        self._named_modules = options.named_modules
        self._failed_modules = set(job.missing_modules)
        self._keepers: set[str] = set()
        self._completed_step = -1
        self._begun_step = job.saved_step
        self._world_step: int | None = None
        """From where the newest world trains on."""
        self._lost_lines = 0
        self._pause: Paused | None = None
        """The last time in which the job stood still."""
        self._causes: deque[tuple[str | None, str]] = deque(maxlen=_COUNTED)
        """Host and cause of each worker that was not killed with others."""
        self._comebacks = Comebacks()

    @property
    def is_after_training(self) -> bool:
        """Whether all trainings so far are complete, and only the script goes on."""
        return self._progress.is_after_training

    def attached(self, order: LaunchOrder | None) -> None:
        """Record that another client shows the job from here on, with its launch."""
        config = None if order is None else order.config
        found = (None, None) if config is None else (config.generation, config.workers)
        self._journal.record(TakenOver(os.getpid(), *found))

    def lost_head(self, launch: Launch, reason: str) -> None:
        """Say that the head before this one is gone, and its workers with it."""
        self._progress.launching(len(launch.workers))
        if reason:
            self.say(f"killed the agent of this host and its workers: {reason}")
            self._journal.record(AgentKilled(reason))
        else:
            self.say("the agent of this host died, and its workers with it")

    def launching(self, command: Launch) -> None:
        """Say that a launch begins."""
        self._say_unsaid()
        workers = tuple(command.workers)
        self._progress.launching(len(workers))
        if command.relaunch:
            self.inform(f"relaunching {count(len(workers), 'worker')} ({command.reason})")
            self._journal.record(
                Relaunch(command.reason, workers, command.spent, command.is_renewal)
            )
        self._journal.record(events.LaunchBegan(command.generation, workers, command.relaunch))

    def show(self, event: Event) -> None:
        """Say an event, as far as it concerns the user, and record it if the journal has such."""
        self._progress.show_event(event)
        match event:
            case Notice():
                self._show_notice(event)
            case WorldFormed(_, _, step):
                self._world_step = step
                self._say_unsaid()  # the others go on
            case WorkerCompleted(_, step) if step > self._completed_step:
                self._completed_step = step
                self._journal.record(event)
            case WorkerFailed(worker):
                self._failed.add(worker)
            case WorkerExited(is_clean=False):
                self._show_death(event)
            case Paused():
                self.paused(event)
            case PreloadFailed():
                self._not_preloaded(event)
            case WorkerFenced():
                self.say(sentence_of(event))
            case _ if event.NAME and not isinstance(event, _OF_WORKERS):
                if event.IS_TOLD:
                    self.say(sentence_of(event))
                self._journal.record(event)
        if isinstance(event, OutputDropped):
            self._lost_lines = event.lines

    def _show_notice(self, notice: Notice) -> None:
        if notice.text not in self._notices:
            self._notices.add(notice.text)
            (self.inform if notice.is_progress else self.say)(notice.text)

    def follow(self, entry: Entry[Any]) -> None:
        """Say how the job goes on after deaths, as soon as the journal's lines tell."""
        for sentence in self._comebacks.follow(entry):
            self._say_unsaid()
            self.inform(sentence)

    def paused(self, pause: Paused) -> None:
        """Say once that the whole job stood still, also if two processes have seen it."""
        if self._pause is None or not pause.overlaps(self._pause):
            self.tell(pause)
        self._pause = pause

    def abandoning(self, reason: str) -> None:
        """Say that a launch is given up although some of its processes do not end."""
        self.say(f"giving the launch up: {reason}")
        self._journal.record(AgentKilled(reason))

    def lost_output(self) -> None:
        """Say, once at the end, how many lines were lost."""
        if self._lost_lines:
            self.say(
                f"{count(self._lost_lines, 'line')} of the job's output were lost, because "
                "stdout or stderr took nothing; send the output to a place that takes it"
            )

    def stopping(self, asked_by: str, *, is_second: bool) -> None:
        """Say that a signal or a person asks the job to stop."""
        self._progress.stopping()
        if is_second:
            self.say(f"{asked_by}: stopping at once")
        else:
            again = "--now" if asked_by.startswith("holdfast") else "again"
            self.say(f"{asked_by}: stopping at the next step with a checkpoint ({again}: at once)")

    def ended(self, end: End) -> None:
        """Say the end of the job; a program's own traceback is shown once, as its user reads it.

        If one error ended the whole job, its workers' deaths get no lines of their own.
        """
        are_their_own = [end.reason in sentence_of(each) for each in self._unsaid]
        is_their_own, is_everyones = any(are_their_own), all(are_their_own)
        if not is_everyones:
            self._say_unsaid(is_traced=not end.traceback)
        if end.traceback:
            trace = end.traceback if self._is_verbose else users_trace(end.traceback)
            if trace not in self._traces or _first_lines(trace) != trace:
                self._write(trace.encode(errors="replace"))
        is_well = end.exit_code in (ExitCode.DONE, ExitCode.STOPPED_EARLY)
        is_bad = end.is_failure or not is_well
        tell = self.say if is_bad else self.inform
        tell(("error: " if is_bad else "") + end.reason)
        if end.exit_code == ExitCode.DONE and self._has_trained_nothing:
            self.inform(
                f"this run was complete already (step {self._completed_step}), and nothing was "
                "trained: to train on, ask for more epochs in the script; to begin a new run, "
                "give --fresh"
            )
        if end.exit_code == ExitCode.RECOVERY_IMPOSSIBLE and not is_their_own:
            for sentence in death_counts(self._causes):
                self.tell(Warned(sentence))
        self._journal.record(JobEnded(int(end.exit_code), end.reason))

    @property
    def _has_trained_nothing(self) -> bool:
        """Whether the run had the step already; one that was damaged is trained once more."""
        began_at = {self._begun_step, self._world_step} - {None}
        return began_at == {self._completed_step}

    def failed(self, error: Exception) -> None:
        """Say that the head itself failed, and that the workers go on."""
        reason = f"{type(error).__name__}: {error}"
        self.say(
            f"error: the head failed ({reason}); the workers go on, but are not relaunched if all "
            "die; report this with the lines above"
        )
        self._journal.record(HeadFailed(reason))

    def _show_death(self, end: WorkerExited) -> None:
        """Say and record a death; that by an exception is said once others go on."""
        if not end.collateral:
            self._causes.append((end.host, end.cause))
        if end.worker in self._failed:
            self._unsaid.append(end)
        elif end.limit != LOST_WITH_ITS_HOST:  # one line tells of all its workers
            self.say(sentence_of(end))
        self._journal.record(end)

    def _not_preloaded(self, failed: PreloadFailed) -> None:
        """Say once that a module is not preloaded, if the user has named it or asks for more.

        A keeper makes each launch slower, and is told once for all of its modules.
        """
        module, keeper = failed.module, failed.keeper
        if module in self._failed_modules:
            return
        self._failed_modules.add(module)
        if keeper is not None:
            is_told = keeper not in self._keepers
            self._keepers.add(keeper)
        else:
            is_told = module in self._named_modules
        if self._is_verbose or is_told:
            costs = "" if keeper is None else "; each launch imports it anew"
            self.say(f"{module} is not preloaded: {failed.message}{costs}")
        self._journal.record(failed)

    def _say_in_a_line(self, text: str) -> None:
        one_line = " ".join(text.split())  # an error of the program may have several
        self._write(f"holdfast: {one_line}\n".encode(errors="replace"))

    def _say_unsaid(self, *, is_traced: bool = True) -> None:
        for each in self._unsaid:
            self.say(sentence_of(each))
            trace = users_trace(each.traceback) if is_traced else ""
            if trace and trace not in self._traces:  # workers may die of the same, one by one
                self._traces.add(trace)
                self._write(_first_lines(trace).encode(errors="replace"))
        self._unsaid.clear()


class Comebacks:
    """What follows on deaths: survivors go on, or another launch does.

    A worker that recovers may tell it before its agent has seen the death: that one comes first.
    The time is that of the report: from the death, or from the injected fault, to the next step.
    """

    def __init__(self) -> None:
        self._faults: dict[int, float] = {}
        self._deaths: dict[int, float] = {}
        """The workers of the newest launch that are dead, and since when."""
        self._recoveries: list[Entry[Recovery]] = []
        """Those that wait for a death to be told."""
        self._left_at: float | None = None
        self._generation = 0
        self._is_relaunched = False

    def follow(self, entry: Entry[Any]) -> list[str]:
        """Take note of a line of the journal; return what there is to say."""
        now = entry.now
        match entry.event:
            case FaultStruck(_, worker):
                self._faults[worker] = now
            case WorkerExited(worker):
                self._left_at = self._deaths[worker] = self._faults.get(worker, now)
            case WorkerStopped():
                self._left_at = now
            case Recovery():
                self._recoveries.append(entry)
            case Relaunch():
                self._is_relaunched = True
                self._left_at = self._left_at or now
            case events.LaunchBegan(generation):
                self._generation = generation or 0
                self._faults, self._deaths, self._recoveries = {}, {}, []
            case Step() as step if self._is_relaunched and step.generation >= self._generation:
                return [self._relaunched(step, now)]
        told = [each for each in self._recoveries if set(each.event.lost) <= self._deaths.keys()]
        self._recoveries = [each for each in self._recoveries if each not in told]
        return list(map(self._recovered, told))

    def _relaunched(self, step: Step, now: float) -> str:
        took_s = now - (self._left_at or now)
        self._is_relaunched, self._left_at = False, None
        return f"relaunched in {brief(took_s)}, goes on from step {step.first - 1}"

    def _recovered(self, entry: Entry[Recovery]) -> str:
        recovery = entry.event
        detected = entry.now - (recovery.next_step_ms or 0.0) / 1000
        took_s = entry.now - min([self._deaths[each] for each in recovery.lost] + [detected])
        left = len(recovery.survivors)
        goes = "goes" if left == 1 else "go"
        return f"recovered in {brief(took_s)}, {count(left, 'worker')} {goes} on"


def _first_lines(trace: str) -> str:
    """Return the first lines of an exception; the journal has all of them."""
    lines = trace.splitlines(keepends=True)
    rest = ["  ...\n"] if len(lines) > _TRACE_LINES else []
    return "".join([*lines[:_TRACE_LINES], *rest])
