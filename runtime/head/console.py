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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.recovery.detector import Pause
from holdfast.recovery.event import End, Launch
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head.job import Job
from holdfast.runtime.head.screen import ProgressLog
from holdfast.runtime.run.entries import Event, record, words_of
from holdfast.runtime.run.event_kinds import EVENTS, Kind
from holdfast.runtime.run.events import (
    Failure,
    OutputDropped,
    Paused,
    Warned,
    at_work,
    death_counts,
)
from holdfast.runtime.run.progress import brief, count
from holdfast.runtime.system.channel import Message
from holdfast.runtime.worker.stacks import users_trace

if TYPE_CHECKING:
    from holdfast.runtime.run.journal import Record, Recorder

_COUNTED = 1000
"""So many newest deaths are counted."""

_TRACE_LINES = 12
"""Of an exception that others survive."""

PASSED_ON = frozenset(
    {"host_lost", "host_refused", "host_back", "output_dropped", "pool_restarted", "pressure"}
    | {"stalled", "suspected"}
)
"""Events that agents tell as they are recorded."""

_LOST_WITH_ITS_HOST = "host"
"""The limit of a death that follows from the loss of its host."""


class Teller:
    """Says sentences to the user of a job, and keeps what it tells in the journal."""

    def __init__(
        self, journal: Recorder, say: Callable[[str], None], *, is_quiet: bool = False
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
        self.say(words_of(event))
        record(self._journal, event)


class JobConsole(Teller):
    """Writes the head's lines."""

    def __init__(
        self,
        job: Job,
        journal: Recorder,
        write: Callable[[bytes], None],
        progress: ProgressLog | None = None,
    ) -> None:
        options = job.config.options
        super().__init__(journal, self._say_in_a_line, is_quiet=options.quiet)
        self._write = write
        self._progress = progress
        self._is_verbose = options.verbose
        self._errors: dict[int, Message] = {}
        self._unsaid: list[_Unsaid] = []
        self._traces: set[str] = set()
        """The exceptions that were shown, with their first lines at least."""
        self._notices: set[str] = set()
        self._named_modules = options.named_modules
        self._failed_modules = set(job.missing_modules)
        self._keepers: set[str] = set()
        self._completed_step = -1
        self._begun_step = job.saved_step
        self._world_step: int | None = None
        """From where the newest world trains on."""
        self._lost_lines = 0
        self._pause: Pause | None = None
        """The last time in which the job stood still."""
        self._deaths = DeathLog()
        self._comebacks = Comebacks()

    @property
    def is_after_training(self) -> bool:
        """Whether all trainings so far are complete, and only the script goes on."""
        return self._progress is not None and self._progress.is_after_training

    def attached(self, launch: Message) -> None:
        """Record that another client shows the job from here on, with its launch."""
        found = {name: launch[name] for name in ("generation", "workers") if name in launch}
        self._journal.record("taken_over", agent=os.getpid(), **found)

    def lost_head(self, launch: Launch, reason: str) -> None:
        """Say that the head before this one is gone, and its workers with it."""
        self._show_launch(launch)
        if reason:
            self.say(f"killed the agent of this host and its workers: {reason}")
            self._journal.record("agent_killed", reason=reason)
        else:
            self.say("the agent of this host died, and its workers with it")

    def recall(self, message: Message) -> None:
        """Remember a message that the head before this one has told about."""
        if message.get("kind") == "worker_report":
            report = message["report"]
            if report.get("kind") == "error":
                self._errors[message["worker"]] = report
            if report.get("kind") == "complete":
                self._completed_step = max(report["step"], self._completed_step)
        elif message.get("kind") == "worker_exited" and not message["clean"]:
            self._deaths.died(message, str(message["cause"]))

    def launching(self, command: Launch) -> None:
        """Say that a launch begins."""
        self._say_unsaid()
        self._show_launch(command)
        if command.relaunch:
            self.inform(f"relaunching {count(len(command.workers), 'worker')} ({command.reason})")
            self._journal.record(
                "relaunch",
                reason=command.reason,
                spent=command.spent,
                workers=list(command.workers),
                is_renewal=command.is_renewal,
            )
        self._journal.record(
            "launch",
            generation=command.generation,
            workers=list(command.workers),
            relaunch=command.relaunch,
        )

    def heard(self, message: Message) -> None:
        """Say the part of an agent's message that concerns the user."""
        if self._progress is not None:
            self._progress.heard(message)
        match message.get("kind"):
            case "worker_report":
                self._heard_report(int(message["worker"]), message["report"])
            case "worker_fenced":
                self.say(_fenced_line(message))
            case "worker_exited" if not message["clean"]:
                self._died(message)
            case "cut_off":
                self.tell(Warned(message["text"]))
            case "paused":
                self.paused(Pause(message["began"], message["ended"]))
            case "preload_failed":
                self._not_preloaded(message["module"], message["message"], message.get("keeper"))
            case str(kind) if kind in PASSED_ON:
                self._pass_on(EVENTS[kind], message)

    def saw(self, record: Record) -> None:
        """Say how the job goes on after deaths, as soon as the journal's records tell."""
        for sentence in self._comebacks.saw(record):
            self._say_unsaid()
            self.inform(sentence)

    def killing(self, reason: str) -> None:
        """Say that a launch is being killed."""
        self.say(f"ending the launch: {reason}")

    def paused(self, pause: Pause) -> None:
        """Say once that the whole job stood still, also if two processes have seen it."""
        if self._pause is None or not pause.overlaps(self._pause):
            self.tell(Paused(round(pause.seconds, 6), pause.ended))
        self._pause = pause

    def abandoning(self, reason: str) -> None:
        """Say that a launch is given up although some of its processes do not end."""
        self.say(f"giving the launch up: {reason}")
        self._journal.record("agent_killed", reason=reason)

    def lost_output(self) -> None:
        """Say, once at the end, how many lines were lost."""
        if self._lost_lines:
            self.say(
                f"{count(self._lost_lines, 'line')} of the job's output were lost, because "
                "stdout or stderr took nothing; send the output to a place that takes it"
            )

    def stopping(self, asked_by: str, *, is_second: bool) -> None:
        """Say that a signal or a person asks the job to stop."""
        if self._progress is not None:
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
        is_their_own = any(end.reason in each.line for each in self._unsaid)
        is_everyones = all(end.reason in each.line for each in self._unsaid)
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
            for sentence in death_counts(self._deaths.own):
                self.tell(Warned(sentence))
        self._journal.record("job_ended", exit_code=end.exit_code, reason=end.reason)

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
        self._journal.record("head_failed", reason=reason)

    def _heard_report(self, worker: int, report: Mapping[str, Any]) -> None:
        if report.get("kind") == "error":
            self._errors[worker] = dict(report)
        elif report.get("kind") == "world":
            self._world_step = report.get("step")
            self._say_unsaid()  # the others go on
        elif report.get("kind") == "complete" and report["step"] > self._completed_step:
            self._completed_step = report["step"]
            fields = {name: value for name, value in report.items() if name != "kind"}
            self._journal.record("completed", **fields)
        elif report.get("kind") == "notice" and report["text"] not in self._notices:
            self._notices.add(report["text"])
            tell = self.inform if report.get("is_progress") else self.say
            tell(report["text"])

    def _died(self, message: Message) -> None:
        error = self._errors.get(message["worker"])
        if error is None:
            cause, trace = str(message["cause"]), {}
            if message.get("limit") != _LOST_WITH_ITS_HOST:  # one line tells of all its workers
                self.say(_died_line(message, cause))
        else:
            cause = f"{error['type']}: {error['message']}"
            trace = {"traceback": error.get("traceback", "")}
            line = _died_line(message | {"where": error.get("where")}, cause)
            self._unsaid.append(_Unsaid(line, error.get("traceback", "")))
        self._journal.record("failure", **self._deaths.died(message | trace, cause))

    def _pass_on(self, kind: Kind, message: Message) -> None:
        """Record an event that an agent tells, and say it if people are told of its kind."""
        event = kind.read(message)
        if event is None:
            return
        if kind.is_told:
            self.say(words_of(event))
        if isinstance(event, OutputDropped):
            self._lost_lines = event.lines
        record(self._journal, event)

    def _not_preloaded(self, module: str, reason: str, keeper: str | None = None) -> None:
        """Say once that a module is not preloaded, if the user has named it or asks for more.

        A ``keeper`` is a library that keeps a thread running.  It keeps every module that
        imports it out of the pool, so each launch is slower, and it is told once for all of them.
        """
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
            self.say(f"{module} is not preloaded: {reason}{costs}")
        self._journal.record("preload_failed", module=module, message=reason)

    def _say_in_a_line(self, text: str) -> None:
        one_line = " ".join(text.split())  # an error of the program may have several
        self._write(f"holdfast: {one_line}\n".encode(errors="replace"))

    def _show_launch(self, launch: Launch) -> None:
        self._deaths.launching(launch.workers)
        if self._progress is not None:
            self._progress.launching(len(launch.workers))

    def _say_unsaid(self, *, is_traced: bool = True) -> None:
        for each in self._unsaid:
            self.say(each.line)
            trace = users_trace(each.traceback) if is_traced else ""
            if trace and trace not in self._traces:  # workers may die of the same, one by one
                self._traces.add(trace)
                self._write(_first_lines(trace).encode(errors="replace"))
        self._unsaid.clear()


class _Unsaid(NamedTuple):
    """A death by an exception, which is told once it is known whether others go on."""

    line: str
    traceback: str


class DeathLog:
    """The deaths of a job."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self.own: deque[tuple[str | None, str]] = deque(maxlen=_COUNTED)
        """Host and cause of each worker that was not killed with others."""

    def launching(self, workers: Sequence[int]) -> None:
        """Take note of the ranks of a launch's workers."""
        self._places.update({worker: rank for rank, worker in enumerate(workers)})

    def died(self, message: Message, cause: str) -> Message:
        """Return the journal's fields of a death, and remember it."""
        worker = message["worker"]
        if not message.get("collateral"):
            self.own.append((message.get("host"), cause))
        fields = {name: message[name] for name in Failure._fields if name in message}
        return fields | {
            "worker": worker,
            "cause": cause,
            "launch_rank": self._places.get(worker),
        }


class Comebacks:
    """What follows on deaths: survivors go on, or another launch does.

    A worker that recovers may tell it before its agent has seen the death: that one comes first.
    The time is that of the report: from the death, or from the injected fault, to the next step.
    """

    def __init__(self) -> None:
        self._faults: dict[int, float] = {}
        self._deaths: dict[int, float] = {}
        """The workers of the newest launch that are dead, and since when."""
        self._recoveries: list[Record] = []
        """Those that wait for a death to be told."""
        self._left_at: float | None = None
        self._generation = 0
        self._is_relaunched = False

    def saw(self, record: Record) -> list[str]:
        """Take note of a record of the journal; return what there is to say."""
        match record["event"]:
            case "fault":
                self._faults[record["worker"]] = record["now"]
            case "failure":
                worker, died = record["worker"], float(record["now"])
                self._left_at = self._deaths[worker] = self._faults.get(worker, died)
            case "stopped":
                self._left_at = record["now"]
            case "recovery":
                self._recoveries.append(record)
            case "relaunch":
                self._is_relaunched = True
                self._left_at = self._left_at or record["now"]
            case "launch":
                self._generation = record["generation"]
                self._faults, self._deaths, self._recoveries = {}, {}, []
            case "step" if self._is_relaunched and record["generation"] >= self._generation:
                return [self._relaunched(record)]
        told = [each for each in self._recoveries if set(each["lost"]) <= self._deaths.keys()]
        self._recoveries = [each for each in self._recoveries if each not in told]
        return list(map(self._recovered, told))

    def _relaunched(self, step: Record) -> str:
        took_s = step["now"] - (self._left_at or step["now"])
        before = step["step"] - step.get("steps", 1)
        self._is_relaunched, self._left_at = False, None
        return f"relaunched in {brief(took_s)}, goes on from step {before}"

    def _recovered(self, recovery: Record) -> str:
        ended = recovery["now"]
        detected = ended - (recovery.get("next_step_ms") or 0.0) / 1000
        took_s = ended - min([self._deaths[each] for each in recovery["lost"]] + [detected])
        left = len(recovery["survivors"])
        goes = "goes" if left == 1 else "go"
        return f"recovered in {brief(took_s)}, {count(left, 'worker')} {goes} on"


def _fenced_line(message: Message) -> str:
    """Return the line of a worker that is killed because it stands still."""
    worker, seconds, step = message["worker"], message["silent_s"], message["step"]
    if message.get("limit") == "stall":
        how = f"has kept the others waiting for {seconds:.1f} s"
    else:
        how = f"has been silent for {seconds:.1f} s"
    is_reading = bool(message.get("is_reading"))
    place = at_work(message.get("where", ""), message.get("samples"), step, is_reading=is_reading)
    return f"worker {worker} {how} after step {step}{place}: killing it"


def _died_line(message: Message, cause: str) -> str:
    """Return the line of a worker that is dead, with the place in the script if it is known."""
    line, where = Failure(message["worker"], cause, message["step"]).words(), message.get("where")
    return f"{line}, in {where}" if where else line


def _first_lines(trace: str) -> str:
    """Return the first lines of an exception; the journal has all of them."""
    lines = trace.splitlines(keepends=True)
    rest = ["  ...\n"] if len(lines) > _TRACE_LINES else []
    return "".join([*lines[:_TRACE_LINES], *rest])
