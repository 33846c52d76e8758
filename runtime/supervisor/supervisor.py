"""The process that owns a job, outside MPI: ``holdfast run``.

It starts the agent, passes every event to `recovery.job`, and carries out the commands.
The agent starts everything else.  It never imports MPI, TensorFlow or HDF5.  Nothing in
training waits for it: when it is killed, the job goes on, and another supervisor can take
the job over.

At the end of a job it tells which faults of ``--inject`` struck no worker: workers of a
relaunch have larger ids, so a fault may wait for one that never comes.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.event import (
    AskToSave,
    AskToStop,
    CheckpointCommitted,
    Command,
    End,
    Event,
    KillAgent,
    KillLaunch,
    Launch,
    LaunchEnded,
    LaunchRenewing,
    Renew,
    StopAsked,
    TimeIsShort,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.fault import Fault, parse_fault
from holdfast.recovery.job import JobMachine, JobState, JobTerms
from holdfast.recovery.launch import LaunchClock, LaunchLimits, Situation
from holdfast.recovery.world import WorkerId
from holdfast.runtime.batch.schedulers import Due
from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.host.supervisor_link import SOCKET_NAME
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.run_restorer import RunKeeper
from holdfast.runtime.supervisor.agent_process import AgentProcess, dismiss_agent, start_agent
from holdfast.runtime.supervisor.batch_job import BatchJob, Order, OrderSignals
from holdfast.runtime.supervisor.job_log import JobConsole
from holdfast.runtime.supervisor.job_setup import JobSetup
from holdfast.runtime.supervisor.screen import Paint, ProgressLog, Screen
from holdfast.runtime.supervisor.takeover import Takeover
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.own_process import reap_strays
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import block
from holdfast.runtime.system.witnessed_time import witnessed_s

_DEATHS = frozenset({"InjectedFault", "WorldLost"})
"""Errors of a worker that are no mistake of its script: a relaunch may cure them."""

_ADDRESS = ("worker", "step", "site", "attempt")

_LOOK_S = 0.5
"""The agent is asked for a sign of life, and the clock is looked at, as often."""

_TIME_IS_UP = {
    False: "the time of the job is nearly up: stopping at the next step with a checkpoint",
    True: "the time of the job is up: stopping at once",
}

_WARMTH: dict[str, Callable[[Message], bool]] = {
    "agent_ready": lambda message: bool(message["warm"]),
    "warm": lambda _: True,
    "pool_restarted": lambda _: False,
}
"""The messages that tell whether the pool has imported everything."""


class Supervisor:
    """Carries events to the job's machine and its commands to the agent.

    Args:
        setup: the job.
        base: its private directory in memory.
        narration: says and records what happens.
        agent: the one of a job to take over, or one that was begun for this job; None for none.
        batch: the batch job around it.
    """

    def __init__(
        self,
        setup: JobSetup,
        base: Path,
        narration: JobConsole,
        agent: Takeover | subprocess.Popen[bytes] | None = None,
        batch: BatchJob | None = None,
    ) -> None:
        options = setup.options
        self._setup = setup
        self._base = base
        self._narration = narration
        self._takeover = agent if isinstance(agent, Takeover) else None
        self._begun = agent if isinstance(agent, subprocess.Popen) else None
        self._batch = batch or BatchJob()
        self._machine = JobMachine(_terms_of(setup))
        self._clock = LaunchClock(LaunchLimits(grace_s=options.grace_s))
        self._keeper = RunKeeper(
            RunDirectory(options.run_dir),
            setup.record,
            setup.lease,
            narration.warned,
            self._hand_lease,
        )
        self._reactor = Reactor()
        self._agent: AgentProcess | None = None
        self._is_warm = False
        self._is_launched = False
        self._end: End | None = None
        self._looked_at = witnessed_s()
        self.is_left = False
        """Whether agent and workers go on without this supervisor."""
        self.signals = OrderSignals(self._reactor, self._on_order, stops=self._batch.stops)

    def run(self) -> ExitCode:
        """Launch, watch and relaunch until the job is over; return its exit code.

        After an error of this code the launch goes on, as it does when this process is killed.
        """
        try:
            return self._run()
        except JobError:
            raise
        except Exception as error:
            is_training = self._agent is not None and self._is_launched
            self.is_left = is_training and self._end is None
            if self.is_left:
                self._narration.failed(error)
            raise

    def _run(self) -> ExitCode:
        if self._takeover is None:
            self._narration.began(self._setup)
            self._batch.introduce(self._narration.noted)
            self._obey(self._machine.start())
        else:
            self._take_over(self._takeover)
        while self._end is None:
            self._reactor.run_once(_LOOK_S)
            self._look(witnessed_s())
        self._look_after_run()
        if self._end.exit_code == ExitCode.DONE:
            for sentence in missed_faults(self._setup.options):
                self._narration.warned(sentence)
        self._narration.ended(self._end)
        return self._end.exit_code

    def close(self) -> None:
        """End every process that was started, unless they must go on without the supervisor."""
        if self._begun is not None:
            dismiss_agent(self._begun)
        if self._agent is not None:
            self._reactor.forget(self._agent.channel)
            if self.is_left:
                self._agent.leave()
            else:
                self._agent.end()
        self._reactor.close()
        if not self.is_left:
            shutil.rmtree(self._base, ignore_errors=True)
            # The last of all: until this process ends, it may still write into the directory.
            atexit.register(self._keeper.lease.end)

    def _take_over(self, takeover: Takeover) -> None:
        """Go on with the job of a supervisor that is gone."""
        self._narration.took_over(self._setup, takeover)
        timeout_s = self._setup.options.heartbeat_timeout_s
        agent = AgentProcess(takeover.channel, takeover.agent, timeout_s)
        self._agent, self._is_warm, self._is_launched = agent, takeover.is_warm, True
        self._machine.take_over(takeover.launch)
        for message in takeover.told:
            self._narration.recall(message)
            self._decide(message)
        self._reactor.watch_channel(agent.channel, self._on_message, self._on_agent_end)

    def _on_order(self, order: Order, number: signal.Signals) -> None:
        if order is Order.SAVE:
            self._tell({"kind": "request", "what": "save"})
        elif order is Order.GO_ON:
            self._narration.hung_up()
        elif self._batch.repeats(number, is_stopping=self._machine.is_stopping, now=time.time()):
            self._narration.noted(f"{number.name}: the job is stopping already", "signal_repeated")
        else:
            self._narration.signalled(number.name, is_second=self._machine.is_stopping)
            self._handle(StopAsked(self._batch.stops[number]))

    def _mind_time(self) -> None:
        """Stop before the time of the job is up, and cut short what would not end by then."""
        due = self._batch.poll(time.time())
        if due is Due.NOTHING or self._end is not None:
            return
        if due is Due.HURRY:
            self._handle(TimeIsShort())
            return
        is_late = due is Due.END
        if is_late or not self._narration.is_after_training:  # nothing is left to be saved
            self._narration.noted(_TIME_IS_UP[is_late], "deadline", is_late=is_late)
        if not self._machine.is_stopping:
            self._handle(StopAsked(ExitCode.STOPPED_EARLY))
        if is_late and self._machine.state is not JobState.ENDING:
            self._handle(StopAsked(ExitCode.STOPPED_EARLY))  # the second wish means "now"

    def _handle(self, event: Event) -> None:
        if self._end is None:
            self._obey(self._machine.handle(event))

    def _obey(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case Launch():
                    self._begin(command)
                case KillLaunch(reason, is_urgent):
                    self._narration.killing(reason)
                    self._tell({"kind": "kill", "is_urgent": is_urgent})
                case KillAgent(reason):
                    self._kill_agent(reason)
                case AskToSave():
                    self._tell({"kind": "request", "what": "save"})
                case AskToStop():
                    self._tell({"kind": "request", "what": "stop"})
                case Renew(reason):
                    self._narration.renewing(reason)
                    self._tell({"kind": "request", "what": "renew"})
                case End():
                    self._end = command

    def _begin(self, command: Launch) -> None:
        """Start one launch; the agent is started with the first, and again if it has died."""
        self._narration.launching(command)
        if self._agent is None:
            self._agent = self._start_agent()
        launch = {
            "kind": "launch",
            "config": to_plain(self._setup.worker_config(command)),
            "mpi": {
                "mpiexec": str(self._setup.mpiexec),
                "library": self._setup.mpi_library,
                "ulfm": self._setup.options.shrink,
            },
            "relaunch": command.relaunch,
            "spent": command.spent,
        }
        self._tell(launch)
        self._is_launched = True

    def _start_agent(self) -> AgentProcess:
        terms = self._setup.agent_terms(self._base, self._keeper.lease)
        self._is_warm = False
        self._base.mkdir(mode=0o700, exist_ok=True)  # an agent that lost us may have removed it
        begun, self._begun = self._begun, None
        agent = start_agent(terms, self._setup.environment, begun, self._narration.paused)
        self._reactor.watch_channel(agent.channel, self._on_message, self._on_agent_end)
        return agent

    def _on_message(self, message: Message) -> None:
        """Log a message of the agent, and pass its event to the machine."""
        if self._agent is not None:
            self._agent.heard()
        kind = message["kind"]
        if kind in _WARMTH:
            self._is_warm = _WARMTH[kind](message)
        elif kind == "signalled" and not self._machine.is_stopping:
            # With this process's own signals, which may be of the same wish.
            self.signals.hear(bytes([signal.Signals[message["signal"]]]))
        self._narration.heard(message)
        self._decide(message)

    def _decide(self, message: Message) -> None:
        event = event_of(message)
        if isinstance(event, CheckpointCommitted):
            self._look_after_run()
            self._batch.saved(message["report"])
        if event is not None:
            self._handle(event)

    def _look_after_run(self) -> None:
        """Make again what was removed of the run directory; a new journal must know of the job."""
        if self._keeper.poll():
            self._narration.record_start(self._setup)

    def _look(self, now: float) -> None:
        """Now and then: see whether the agent lives, and whether the launch is overdue."""
        if now - self._looked_at < _LOOK_S or self._end is not None:
            return
        self._looked_at = now
        self._reap_strays()
        self._mind_time()
        draws = self._narration.draws
        silence_s = None if self._agent is None else self._agent.silence_s(now, draws=draws)
        if silence_s is not None:
            self._kill_agent(f"it has not answered for {silence_s:.1f} s")
            return
        self._clock = self._clock.observe(self._machine.view.workers, self._situation, now)
        overdue = self._clock.overdue
        if overdue is not None:
            self._handle(overdue)

    def _reap_strays(self) -> None:
        """Reap what an agent that died has left, if this is process 1, as in a container."""
        started = [self._begun and self._begun.pid, self._agent and self._agent.child]
        reap_strays([pid for pid in started if pid])

    @property
    def _situation(self) -> Situation:
        """Return what the launch is waiting for."""
        match self._machine.state:
            case JobState.LAUNCHING:
                return Situation.JOINING if self._is_warm else Situation.WARMING
            case JobState.ENDING:
                return Situation.ENDING
        if self._machine.is_stopping:
            return Situation.STOPPING
        return Situation.LEAVING if self._machine.view.was_renewed else Situation.RUNNING

    def _kill_agent(self, reason: str) -> None:
        """Kill an agent that stands still, and go on as if it had died by itself."""
        if self._agent is not None:
            self._narration.killing_agent(reason)
            self._reactor.forget(self._agent.channel)
            self._agent.kill()
            self._lose_agent()

    def _on_agent_end(self) -> None:
        self._narration.lost_agent()
        self._lose_agent()

    def _lose_agent(self) -> None:
        """Report the end of the launch: the kernel has killed all its processes with the agent."""
        if self._agent is not None:
            self._agent.end()
            self._agent = None
        view = self._machine.view
        for worker in sorted(set(view.workers) - set(view.exits)):
            self._handle(WorkerExited(worker, is_clean=False, cause="its agent died"))
        self._handle(LaunchEnded())

    def _hand_lease(self, lease: Lease) -> None:
        """Give the agent the lease of a directory that was made again; it outlives this process."""
        with contextlib.suppress(OSError):  # the lock counts; only nobody could take this job over
            lease.name_agent(self._base / SOCKET_NAME)
        if self._agent is not None:
            self._agent.tell({"kind": "lease"}, (lease.fileno(),))

    def _tell(self, message: Message) -> None:
        if self._agent is not None:
            self._agent.tell(message)


def _terms_of(setup: JobSetup) -> JobTerms:
    options = setup.options
    workers = options.workers + options.spares
    return JobTerms(
        workers=workers,
        max_restarts=options.max_restarts,
        # The death of a single worker leaves no survivor that would wait for ever.
        can_shrink=options.shrink or workers == 1,
        first_generation=setup.first_generation,
        has_checkpoint=setup.saved_step is not None or options.repair_from is not None,
        spares=options.spares,
    )


@dataclass(frozen=True, slots=True)
class SupervisedJob:
    """A job, its private directory in memory, and everything that it says."""

    setup: JobSetup
    base: Path
    screen: Screen
    progress: ProgressLog
    narration: JobConsole

    @staticmethod
    def of(setup: JobSetup, base: Path, paint: Paint | None) -> SupervisedJob:
        """Return a job that draws a live line if it has colours for it."""
        options = setup.options
        screen = Screen(may_draw=paint is not None)
        progress = ProgressLog(screen, paint, is_quiet=options.quiet)
        narration = JobConsole(
            setup.journal,
            is_verbose=options.verbose,
            write=screen.say,
            progress=progress,
            is_quiet=options.quiet,
        )
        return SupervisedJob(setup, base, screen, progress, narration)

    def run(self, agent: Takeover | subprocess.Popen[bytes] | None, batch: BatchJob) -> ExitCode:
        """Run the job to its end; no signal may end this process before everything is cleaned up.

        Args:
            agent: the one of a job to take over, or one that was begun for this job.
            batch: the batch job around it.
        """
        supervisor = Supervisor(self.setup, self.base, self.narration, agent, batch)
        try:
            return supervisor.run()
        finally:
            block()  # this process ends next, with the job's exit code and no other
            self.progress.end()
            supervisor.close()
            self.narration.lost_output()
            self.screen.close()
            self.narration.dropped(self.screen.dropped)
            self.setup.journal.close()
            supervisor.signals.restore()


def event_of(message: Message) -> Event | None:
    """Return the job's event for an agent's message, None if the message changes nothing."""
    kind = message.get("kind")
    if kind == "worker_exited":
        worker = WorkerId(message["worker"])
        return WorkerExited(worker, bool(message["clean"]), str(message["cause"]))
    if kind == "renewing":
        return LaunchRenewing(WorkerId(message["worker"]))
    if kind == "launch_ended":
        words = str(message["words"])
        return LaunchEnded(f"mpiexec started no worker: {words}" if words else "")
    if kind != "worker_report":
        return None
    report = message["report"]
    translate = _REPORTS.get(report.get("kind"))
    return None if translate is None else translate(WorkerId(message["worker"]), report)


def _failed(worker: WorkerId, report: Mapping[str, str]) -> WorkerFailed:
    return WorkerFailed(
        worker,
        kind=report["type"],
        message=report["message"],
        traceback=report["traceback"],
        exit_code=ExitCode(int(report["exit_code"])),
        is_death=report["type"] in _DEATHS,
        is_in_training=bool(report.get("is_in_training")),
    )


def _formed(worker: WorkerId, report: Message) -> WorldFormed:
    workers = tuple(WorkerId(member) for member in report["workers"])
    return WorldFormed(report["generation"], workers, report["step"])


_REPORTS: dict[object, Callable[[WorkerId, Message], Event]] = {
    "joined": lambda worker, report: WorkerJoined(worker),
    "world": _formed,
    "checkpoint": lambda worker, report: CheckpointCommitted(worker, report["step"]),
    "error": _failed,
    "complete": lambda worker, report: WorkerCompleted(
        worker, report["step"], report["sha256"], bool(report["is_first"])
    ),
    "stopped": lambda worker, report: WorkerStopped(
        worker, report["step"], str(report.get("words", ""))
    ),
}


def missed_faults(options: JobOptions) -> Iterator[str]:
    """Yield a sentence for each fault that has not struck in this run."""
    if not options.faults:
        return
    try:
        records = read_journal(RunDirectory(options.run_dir).journal_path)
    except OSError:  # nobody knows what has struck
        return
    struck = {tuple(r.get(k) for k in _ADDRESS) for r in records if r["event"] == "fault"}
    last = options.workers + options.spares - 1
    for fault in map(parse_fault, options.faults):
        if _address(fault) not in struck:
            yield (
                f"--inject '{fault}' never struck: worker {fault.worker} never came there. "
                f"The workers of a first launch are 0 to {last}"
            )


def _address(fault: Fault) -> tuple[object, ...]:
    return (fault.worker, fault.step, fault.site.value, fault.attempt)
