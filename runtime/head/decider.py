"""What is done about each event of a job: the machine's decisions, carried out on the agent.

The theory of launches, relaunches and the end is `recovery.job`.  This class passes every event
to its machine, and every command to the agent as an order.  It minds what no event tells: the
time of the job, and a launch that takes too long.

An error in here must not cost the workers, which train without any decision.  So `Head` catches
it, and goes on with `Decider.failed`: then nothing is decided any more, and the job ends with its
launch.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from holdfast.recovery.event import (
    AbandonLaunch,
    AskToSave,
    AskToStop,
    CheckpointCommitted,
    Command,
    DropPrepared,
    End,
    Event,
    KillLaunch,
    Launch,
    LaunchEnded,
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
    WorkerJoined,
    WorldFormed,
)
from holdfast.recovery.fault import Moment, RandomFaults, faults_of_launch, parse_faults
from holdfast.recovery.job import DECIDED, JobMachine, JobState, RestartBudget
from holdfast.recovery.launch import LaunchClock, Situation
from holdfast.recovery.placement import total_slots
from holdfast.recovery.regrow import Pace, Regrowth
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head.console import JobConsole
from holdfast.runtime.head.job import Job, LaunchLog
from holdfast.runtime.head.orders import HeardSignals, TimeDue
from holdfast.runtime.head.run_link import RunLink
from holdfast.runtime.head.visits import Standing
from holdfast.runtime.host.host_messages import LaunchOrder, Order
from holdfast.runtime.run.checkpoint_events import CheckpointFailed
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import (
    Deadline,
    FaultStruck,
    HungUp,
    PoolRestarted,
    PoolWarmed,
    Renewing,
    SignalRepeated,
    Warned,
)
from holdfast.runtime.run.failure_history import RunHistory
from holdfast.runtime.run.progress import StepReport, count
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.witnessed_time import witnessed_s

_IDLE_POLLS = 10
"""After so many the end of a launch would have been told, if there was one."""

_CHECKED_EVERY_S = 5.0
"""So often the writer looks whose the run directory is."""

_TIME_IS_UP = {
    False: "the time of the job is nearly up: stopping at the next step with a checkpoint",
    True: "the time of the job is up: stopping at once",
}


class Decider:
    """Carries events to the job's machine and its commands to the agent.

    Args:
        job: the job.
        run: where its records go.
        console: says and records what happens.
        obey: gives the agent an order.
        place: says on which host each of so many workers lives.
    """

    def __init__(
        self,
        job: Job,
        run: RunLink,
        console: JobConsole,
        obey: Callable[[Order], None],
        place: Callable[[int], tuple[str, ...]] = lambda _: (),
    ) -> None:
        self.job = job
        self._run = run
        self._console = console
        self._obey_agent = obey
        self._place = place
        self._machine = JobMachine(job.terms)
        options = job.config.options
        self._clock = LaunchClock(options.grace_s)
        self._history = RunHistory(job.config.history, time.monotonic())
        self._struck = set(job.struck)
        self._is_warm = False
        self._has_failed = False
        self._idle_polls = 0
        self._checked_at = 0.0
        self._has_stopped = False
        """Whether workers were told to stop although nothing is decided any more."""
        self._is_complete = False
        """Whether a worker has told that all trainings are complete."""
        self.limits = job.limits
        self.log = LaunchLog(job)
        self.end: End | None = None
        self._regrowth = Regrowth()
        self._pace = Pace(0, 0, 0.0)
        self._prepared_hosts: tuple[str, ...] = ()
        """Where the workers of the launch live that is prepared."""
        self._heard = HeardSignals(self.limits.stops)

    def begin(self) -> None:
        """Begin the job with its first launch."""
        self._carry_out(self._machine.start())

    def go_on(self, standing: Standing, reason: str) -> None:
        """Go on after a head that has died with its workers, and what it had come to."""
        order = from_plain(LaunchOrder, standing.order)
        launch = order.launch
        self._history = RunHistory(order.config.history, time.monotonic())
        self._console.lost_head(launch, reason)
        self._machine.take_over(launch, standing.prepared)
        self.log.begin(order)
        if standing.asked is not None:
            self._handle(ScaleAsked(standing.asked))
        first, *_ = launch.workers
        if standing.is_up:
            for worker in launch.workers:
                self._handle(WorkerJoined(worker))
        if standing.saved_step is not None:
            self._handle(CheckpointCommitted(first, standing.saved_step))
        for worker in launch.workers:
            self._handle(WorkerExited(worker, cause="its agent died"))

    def on_event(self, event: Event) -> None:
        """Tell the user of an event, and pass it to the machine."""
        self._is_complete |= isinstance(event, WorkerCompleted)
        if isinstance(event, PoolWarmed | PoolRestarted):
            self._is_warm = isinstance(event, PoolWarmed)  # it has imported everything
        if self._has_failed:
            if isinstance(event, LaunchEnded):
                self._end_undecided()
            return
        self._console.show(event)
        if isinstance(event, CheckpointCommitted):
            self.limits.saved(event)
        match event:
            case WorldFormed(generation):
                is_loss = generation != self._machine.view.generation
                self._regrowth = self._regrowth.formed(witnessed_s(), is_loss=is_loss)
            case PreparationFailed():
                self._regrowth = self._regrowth.failed(self._pace.now)
        if type(event) in DECIDED:
            self._handle(event)

    def on_record(self, entry: Entry[Any]) -> None:
        """Take note of a line of the journal, of any process."""
        self._history.count(entry)
        match entry.event:
            case FaultStruck() as fault:
                self._struck.add(fault.address)
            case CheckpointFailed():  # perhaps the directory is gone
                self._run.check()

    def poll(
        self,
        now: float,
        *,
        is_idle: bool,
        is_held: bool = False,
        progress: StepReport | None = None,
    ) -> None:
        """Mind the time of the job, the bounds and the size of its launch; call it twice a second.

        ``is_idle`` is whether no worker is hosted, ``is_held`` whether the next launch waits for a
        host, which has a bound of its own.
        """
        if self.end is not None:
            return
        if self._has_failed:
            self._idle_polls = self._idle_polls + 1 if is_idle else 0
            if self._idle_polls >= _IDLE_POLLS:
                self._end_undecided()
            return
        if now - self._checked_at >= _CHECKED_EVERY_S:
            self._checked_at = now
            self._run.check()
        self._mind_time()
        if is_held:
            return
        self._clock = self._clock.observe(self._machine.view.workers, self._situation, now)
        overdue = self._clock.overdue
        if overdue is not None:
            self._handle(overdue)
        self._look_whether_to_grow(progress, now)

    def _look_whether_to_grow(self, progress: StepReport | None, now: float) -> None:
        """Want a launch of another size if a user has asked for it, or if more workers pay."""
        if progress is None:
            return
        self._pace = Pace(progress.step, progress.steps, now)
        machine = self._machine
        workers, possible = machine.active
        self._regrowth = self._regrowth.seen(self._pace, workers)
        if self.end is not None or not machine.may_plan:
            return
        if machine.is_rescaled:
            if now >= self._regrowth.retry_at:
                self._handle(LaunchWanted(f"scaled to {count(possible, 'worker')}"))
        elif self.job.config.options.regrow == "auto" and self._regrowth.pays(
            self._pace, workers, possible
        ):
            self._handle(LaunchWanted(f"{workers} of {possible} workers are left"))

    def scale(self, workers: int) -> str:
        """Let the job go on with another number of workers; return why it cannot, "" if it does."""
        config, hosts = self.job.config, self.job.hosts
        parts, slots = config.record.microbatches, total_slots(hosts)
        if self.is_stopping or self._has_failed:
            return "it is ending"
        if self._machine.is_short_of_time:
            return "its time is nearly up, and no other launch follows"
        if workers > parts:
            return f"each step has {parts} microbatches, so more than {parts} workers would be idle"
        if hosts and workers + config.options.spares > slots:
            return f"its hosts take {slots} workers; stop it and run it again with other --hosts"
        options = replace(config.options, workers=workers)
        self.job = replace(self.job, config=replace(config, options=options))
        asked = ScaleAsked(workers)
        self.log.note(asked)
        self.on_event(asked)
        return ""

    def lose_directory(self, lost: RunDirectoryLost) -> None:
        """End the job, whose run directory is gone or another job's."""
        if not self._has_failed:  # else it ends with its launch
            self._handle(lost)

    def failed(self, error: Exception) -> None:
        """Decide nothing any more: the workers go on, and the job ends with their launch."""
        if not self._has_failed:
            self._has_failed = True
            self._console.failed(error)

    def _end_undecided(self) -> None:
        """End the job after an error: as complete if a worker has told so."""
        if self._is_complete:
            self.end = End(ExitCode.DONE, "the workers have completed the job", is_failure=True)
        else:
            reason = "the launch has ended, and the head that failed decides nothing; run again"
            self.end = End(ExitCode.RECOVERY_IMPOSSIBLE, reason)
        with contextlib.suppress(Exception):  # it may be the console that fails
            self._console.ended(self.end)

    def take_signals(self, numbers: Iterable[int]) -> None:
        """Do what signals ask for: a stop, a checkpoint, or to go on without a terminal."""
        for number in self._heard.new_in(numbers):
            if number not in self.limits.stops:
                if number == signal.SIGUSR2:
                    self.save()
                elif number == signal.SIGHUP:
                    self._console.tell(HungUp())
            elif self.limits.repeats(number, is_stopping=self.is_stopping, now=self.limits.now):
                self._console.tell(SignalRepeated(f"{number.name}: the job is stopping already"))
            else:
                self._stop(number.name, self.limits.stops[number])

    def _stop(self, asked_by: str, code: ExitCode) -> None:
        """Stop the job with a checkpoint; a second time at once."""
        if self._has_failed:
            self._stop_without_machine()
        else:
            self._console.stopping(asked_by, is_second=self.is_stopping)
            self._handle(StopAsked(code))

    def save(self) -> None:
        """Ask the workers for a checkpoint."""
        self._obey_agent(AskToSave())

    def stop(self, *, is_urgent: bool) -> None:
        """Stop the job with a checkpoint, or at once, because a person has asked for it."""
        # An order, as SIGTERM is: a batch job does not come back after it.
        self.limits.repeats(signal.SIGTERM, is_stopping=self.is_stopping, now=self.limits.now)
        if not self.is_stopping:
            self._stop("holdfast stop", ExitCode.TERMINATED)
        if is_urgent:
            self._stop("holdfast stop --now", ExitCode.TERMINATED)

    @property
    def is_stopping(self) -> bool:
        """Whether the job was told to stop."""
        return self._has_stopped or self._machine.is_stopping

    def _stop_without_machine(self) -> None:
        order = KillLaunch("stopping at once") if self._has_stopped else AskToStop()
        self._has_stopped = True
        self._obey_agent(order)

    def _mind_time(self) -> None:
        """Stop before the time of the job is up, and cut short what would not end by then."""
        due = self.limits.poll(self.limits.now)
        if due is TimeDue.NOTHING or self.end is not None:
            return
        if due is TimeDue.HURRY:
            self._handle(TimeIsShort())
            return
        is_late = due is TimeDue.END
        if is_late or not self._console.is_after_training:  # nothing is left to be saved
            self._console.tell(Deadline(_TIME_IS_UP[is_late], is_late))
        if not self.is_stopping:
            self._handle(StopAsked(ExitCode.STOPPED_EARLY))
        if is_late and self._machine.state is not JobState.ENDING:
            self._handle(StopAsked(ExitCode.STOPPED_EARLY))  # the second request means "now"

    def _handle(self, event: Event) -> None:
        if self.end is None:
            self._carry_out(self._machine.handle(event))

    def _carry_out(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case Launch():
                    self._launch(command)
                case End():
                    self._finish(command)
                case KillLaunch(reason):
                    self._console.say(f"ending the launch: {reason}")
                    self._obey_agent(command)
                case AbandonLaunch(reason):
                    self._console.abandoning(reason)
                    self._obey_agent(command)
                case Renew(reason):
                    self._console.tell(Renewing(reason))
                    self._regrowth = self._regrowth.made_room(self._pace.now)
                    self._obey_agent(command)
                case Prepare(launch):
                    hosts = self._prepared_hosts = self._place(len(launch.workers))
                    order = self._order_of(launch, hosts, is_prepared=True)
                    self.log.prepare(order)
                    self._obey_agent(order)
                case AskToSave() | AskToStop() | DropPrepared():
                    self._obey_agent(command)

    def _launch(self, launch: Launch) -> None:
        self._console.launching(launch)
        hosts, self._prepared_hosts = self._prepared_hosts, ()
        if not launch.is_renewal:
            hosts = self._place(len(launch.workers))
        order = self._order_of(launch, hosts)
        self.log.begin(order)
        self._obey_agent(order)

    def _order_of(
        self, launch: Launch, hosts: tuple[str, ...], *, is_prepared: bool = False
    ) -> LaunchOrder:
        return self.job.order_of(
            launch,
            options=replace(self.job.config.options, faults=self._faults_of(launch)),
            history=self._history.at(time.monotonic()),
            hosts=hosts,
            is_prepared=is_prepared,
        )

    def _faults_of(self, launch: Launch) -> tuple[str, ...]:
        """Return what strikes the launch; random faults never spend the last relaunch."""
        options = self.job.config.options
        budget = RestartBudget(options.max_restarts, launch.spent)
        most = len(launch.workers)
        if budget.charge(checkpoints=0).is_spent:
            most = most - 1 if options.shrink else 0
        given = parse_faults(options.faults)
        found = faults_of_launch(given, launch.workers, self._struck_moments, most)
        return tuple(map(str, found))

    @property
    def _struck_moments(self) -> set[Moment]:
        return {(step, site) for _, step, site, _ in self._struck}

    def _finish(self, end: End) -> None:
        self.end = end
        if end.exit_code == ExitCode.DONE:
            for sentence in self._missed_faults():
                self._console.tell(Warned(sentence))
        self._console.ended(end)

    def _missed_faults(self) -> Iterator[str]:
        """Yield a sentence for each fault that has not struck in this run.

        Workers of a relaunch have larger ids, so a fault may wait for one that never comes.
        """
        options = self.job.config.options
        last = options.workers + options.spares - 1
        for fault in parse_faults(options.faults):
            if isinstance(fault, RandomFaults):
                struck = self._struck_moments
                moments = {one.moment for one in fault.faults([WorkerId(0)])}
                enough = 2 * fault.count  # a relaunch for each, without a checkpoint
                more = f" (--max-restarts {enough} allows all)"
                if moments - struck:
                    yield (
                        f"--inject '{fault}' struck {len(moments & struck)} of {fault.count} "
                        "times: the job did not come to the other steps, or their worker was "
                        "dead, or a relaunch more would have cost too much"
                        f"{more if options.max_restarts < enough else ''}"
                    )
                continue
            victim = fault.host or fault.worker
            if (victim, fault.step, fault.site.value, fault.attempt) in self._struck:
                continue
            if fault.host:
                yield (
                    f"--inject '{fault}' never struck: the first worker of host {fault.host} "
                    "never came there"
                )
            else:
                yield (
                    f"--inject '{fault}' never struck: worker {fault.worker} never came there. "
                    f"The workers of a first launch are 0 to {last}, and of a launch that fills "
                    "places later ones (--regrow never fills none)"
                )

    @property
    def _situation(self) -> Situation:
        """Return what the launch is waiting for."""
        match self._machine.state:
            case JobState.LAUNCHING:
                return Situation.JOINING if self._is_warm else Situation.WARMING
            case JobState.ENDING:
                return Situation.ENDING
        if self.is_stopping:
            return Situation.STOPPING
        return Situation.LEAVING if self._machine.view.was_renewed else Situation.RUNNING
