"""The head: the agent of a job's first host, which decides for the job.

It is told its job by the client that starts it (`client`), and needs no client from then on.
Training, relaunches and the end of the job do not wait for one.  Lines and output go to the
stdout and stderr of the newest client.  Anybody of the same user may ask for the status or for
a checkpoint, or stop the job, over the one socket of the agent.

Events of the agent are kept in order and handled when the agent's own handlers have returned.
So a decision never meets a host in the middle of a change.  An error in a decision is told and
recorded, and the head hosts on without deciding (`Decider.failed`).

Invariant: the head touches no disk.  `RunLink` hands everything for the run directory to the
writer's process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.recovery.event import HostLost, LaunchEnded, RunDirectoryLost
from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.head.console import JobConsole
from holdfast.runtime.head.decider import Decider
from holdfast.runtime.head.job import Job, LaunchLog
from holdfast.runtime.head.job_hosts import JobHosts
from holdfast.runtime.head.run_link import RunLink
from holdfast.runtime.head.screen import ProgressLog, Screen
from holdfast.runtime.head.visits import (
    AnotherJob,
    Asked,
    AskSave,
    AskScale,
    AskStatus,
    AskStop,
    BeginJob,
    ClientPing,
    ClientRefused,
    ClientTaken,
    HeadPong,
    HeadStatus,
    JobDone,
    JobStarting,
    JobStopping,
    OfClient,
    PassSignals,
    Refused,
    SaveRequests,
    ScaleAnswered,
    ShowJob,
    Standing,
    StopOrdered,
)
from holdfast.runtime.host.agent import Agent, AgentSettings, Visitor
from holdfast.runtime.host.host_messages import News, Order
from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import Warned
from holdfast.runtime.run.journal import Records
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.saving.copier_link import CopierLink
from holdfast.runtime.saving.save_messages import PlanSaves
from holdfast.runtime.system.channel import FDS, Channel, Message, MessageKinds, to_message
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.processes import (
    PeerSilence,
    is_stopped,
    kill_peer,
    kill_standing_parent,
)
from holdfast.runtime.system.witnessed_time import witnessed_s

_ASKED: MessageKinds[Asked] = MessageKinds(Asked)
_OF_CLIENT: MessageKinds[OfClient] = MessageKinds(OfClient)
_POLL_S = 0.5
_METRICS_EVERY_S = 2.0
_LONGEST_WRITER_PAUSE_S = 30.0
_CLIENT_WITHIN_S = 60.0
"""A client that has started a head tells it the job at once, unless it has died."""


class Head:
    """Decides for the agent of its own process; ``make`` makes that with the settings."""

    def __init__(self, settings: AgentSettings, make: type[Agent] = Agent) -> None:
        self._parent = settings.parent
        self._writers: Channel | None = None
        self._lease = None if settings.lease is None else Lease(settings.lease)
        self._client: _Client | None = None
        self._job: _RunningJob | None = None
        self._held: LaunchEnded | None = None
        """The end of a launch that is followed by no other one before a host is back."""
        self._stoppers: list[Channel] = []
        """The connections of those who have asked for the end, and hear of it."""
        self._polled_at = self._next_writer_at = self._shown_at = 0.0
        self._writer_pause_s = _POLL_S
        self._waits_until = witnessed_s() + _CLIENT_WITHIN_S
        agent = self._agent = make(settings, self._introduce, self._take_files)  # starts a writer
        self._reactor = agent.reactor
        self._screen = Screen(agent.streams)

    def run(self) -> ExitCode:
        """Decide until the job is over; return the exit code."""
        self._agent.pass_signals(self.take_signals)
        code = None
        while code is None:
            now = self._agent.turn()
            code = self.poll(now, is_idle=self._agent.launch.is_idle)
        return code

    def _take_files(self, channel: Channel) -> None:
        """Take a writer's channel for the run directory."""
        if self._job is None:
            self._writers = channel
        else:
            self._job.run.connect(channel)

    def _describe(self) -> HeadStatus:
        job = self._job
        return HeadStatus(
            now=time.monotonic(),
            pid=os.getpid(),
            client=None if self._client is None else self._client.pid,
            run_dir=None if job is None else str(job.job.config.options.run_dir),
            launched=0 if job is None else job.decider.log.launched,
            seen=self._agent.launch.describe(),
        )

    def poll(self, now: float, *, is_idle: bool) -> ExitCode | None:
        """Handle the events that have come; return the exit code once the job is over."""
        job = self._job
        if job is None:
            return self._poll_without_job(now)
        while self._agent.events:
            self._handle(job, self._agent.events.popleft())
        if now - self._polled_at >= _POLL_S:
            self._polled_at = now
            self._poll_client(now)
            with job.errors_told():
                if job.decider.end is None:
                    job.hosts.poll(now)
                seen = self._agent.launch.progress
                is_held, progress = self._held is not None, seen.progress
                job.decider.poll(now, is_idle=is_idle, is_held=is_held, progress=progress)
                job.progress.show(seen)
                job.copier.poll(now)
                self._show_metrics(job, now)
            if self._held is not None and not self._waits_for_hosts(job):
                held, self._held = self._held, None
                self._handle(job, held)
            self._see_to_writer(job, now)
        end = job.decider.end
        if end is None or (self._client is not None and is_stopped(self._client.pid)):
            return None  # a client that is stopped has the lease: the next one takes its place
        limits = job.decider.limits
        is_limited = limits.is_batch or limits.deadline is not None
        is_hurried = is_limited and end.exit_code == ExitCode.STOPPED_EARLY
        return end.exit_code if job.copier.has_ended(now, is_hurried=is_hurried) else None

    def _show_metrics(self, job: _RunningJob, now: float) -> None:
        if job.job.config.options.metrics_file and now - self._shown_at >= _METRICS_EVERY_S:
            self._shown_at = now
            job.run.look(self._agent.launch.describe())

    def _see_to_writer(self, job: _RunningJob, now: float) -> None:
        """Start another writer for the journal if there is none; one that dies at once, seldom."""
        if job.run.has_answered:
            self._writer_pause_s = _POLL_S
        elif not job.run.is_connected and now >= self._next_writer_at:
            self._next_writer_at = now + self._writer_pause_s
            self._writer_pause_s = min(2 * self._writer_pause_s, _LONGEST_WRITER_PAUSE_S)
            self._agent.host.writer.start()

    def _poll_without_job(self, now: float) -> ExitCode | None:
        if now < self._waits_until and os.getppid() == self._parent:
            return None
        kill_standing_parent(self._parent)
        return ExitCode.DONE

    def _introduce(self, visitor: Visitor, message: Message) -> None:
        try:
            self._serve(visitor, message)
        except (KeyError, TypeError, ValueError, JobError):  # no message of a holdfast
            if self._client is not None and self._client.channel is visitor.channel:
                self._client = None
            self._dismiss(visitor.channel)

    def _serve(self, visitor: Visitor, message: Message) -> None:
        match _ASKED.decode(message), self._job:
            case (BeginJob() | ShowJob()) as asked, _:
                self._take_client(visitor, asked, message.get(FDS, ()))
            case AskStatus(), _:  # it may ask again, and goes when it likes
                visitor.channel.post(to_message(self._describe()))
            case _, None:
                visitor.channel.post(to_message(JobStarting()))
                self._dismiss(visitor.channel)
            case AskSave(is_waiting), job:
                self._take_save(job, visitor, is_waiting=is_waiting)
            case AskScale(workers), job:
                with job.errors_told():
                    refusal = job.decider.scale(workers)
                    self._tell_client(job)
                    visitor.channel.post(to_message(ScaleAnswered(refusal)))
                self._dismiss(visitor.channel)
            case AskStop(is_urgent), job:
                self._stoppers.append(visitor.channel)
                visitor.channel.post(to_message(JobStopping()))
                if self._client is not None:
                    self._client.channel.post(to_message(StopOrdered()))
                with job.errors_told():
                    job.decider.stop(is_urgent=is_urgent)

    def take_signals(self, numbers: Iterable[int]) -> None:
        """Act on signals of this process or of the client, which may be of the same request."""
        if self._job is not None:
            with self._job.errors_told():
                if self._job.decider.end is not None:
                    self._job.copier.give_up()
                self._job.decider.take_signals(numbers)

    def close(self) -> None:
        """Write down what is left, end all processes of this host, and let clients go."""
        self._finish()
        self._agent.close()
        for channel in self._stoppers:
            self._tell_end(channel)
            channel.close()
        if self._client is not None:
            self._client.channel.close()

    def _tell_end(self, channel: Channel) -> None:
        """Tell the exit code of the job to a client, or to a process that has asked for its end."""
        if self._job is not None and self._job.decider.end is not None:
            decider, lost = self._job.decider, tuple(self._job.hosts.missing)
            code = int(self._job.decider.end.exit_code)
            channel.post(to_message(JobDone(code, decider.limits, lost)))

    def _finish(self) -> None:
        """Write down what is left of the job, while there is still a writer for it.

        From now on the client waits for the end of this process, which may take its time.
        """
        job = self._job
        if job is None:
            return
        while self._agent.events:
            self._handle(job, self._agent.events.popleft())
        if self._client is not None:
            self._tell_end(self._client.channel)
        with job.errors_told():
            job.copier.give_up()
            job.progress.end()
            job.console.lost_output()
        if not job.run.is_connected:  # the end of the job would be lost
            self._agent.host.writer.start()
        job.run.close(is_over=job.decider.end is not None)

    def _take_client(self, visitor: Visitor, asked: BeginJob | ShowJob, fds: Sequence[int]) -> None:
        """Serve a client from now on, unless it would replace one that is well."""
        channel, refusal = visitor.channel, self._refusal(asked)
        if refusal is not None:
            for fd in fds:
                os.close(fd)
            channel.post(to_message(refusal))
            self._dismiss(channel)
            return
        if self._client is not None:
            self._reactor.forget(self._client.channel)
            kill_peer(self._client.channel, unless=channel.peer_pid)
            self._client.channel.close()
        client = self._client = _Client(channel, self._agent.settings.heartbeat_timeout_s)
        visitor.on_message = lambda found: self._on_client(client, found)
        visitor.on_end = lambda: self._lose_client(client)
        self._speak_to(fds)
        if isinstance(asked, BeginJob):
            self._begin(asked)
        elif self._job is not None:
            with self._job.errors_told():
                self._job.console.attached(self._job.decider.log.order)
        assert self._job is not None
        self._greet(client, self._job)

    def _refusal(self, asked: BeginJob | ShowJob) -> Refused | None:
        """Return why a client may not show this job, None if it may."""
        if self._job is None:
            return None if isinstance(asked, BeginJob) else JobStarting()
        its = tuple(self._job.job.asked)
        if isinstance(asked, ShowJob):
            client = self._client
            if client is not None and not (client.is_silent or client.has_hung_up):
                return ClientRefused(client.pid)
            if asked.asked is None or asked.asked == its:
                return None
        return AnotherJob(its)

    def _begin(self, message: BeginJob) -> None:
        """Begin the job, or go on with it after another head."""
        after = message.after
        job = from_plain(Job, message.job)
        job = job if after is None else job.after(after)
        lease = -1 if self._lease is None else self._lease.fileno()
        run = RunLink(self._reactor, job, lease, () if after is not None else job.said)
        self._screen.copy = lambda lines: run.log(LogText(None, "", lines.decode("latin-1")))
        imports = "TensorFlow" if "tensorflow" in job.preload else "libraries"
        quiet = job.config.options.quiet
        progress = ProgressLog(self._screen, is_quiet=quiet, imports=imports)
        console = JobConsole(job, run, self._screen.say, progress)
        hosts = JobHosts(job, self._agent, is_taken_over=after is not None)
        decider = Decider(job, run, console, self._obey, hosts.place)
        saves = SaveRequests(decider.save)
        copier = CopierLink(self._reactor, job.config, console.show)
        self._job = _RunningJob(run, progress, console, decider, hosts, saves, copier)
        run.serve(self._job.on_record, self._job.on_directory)
        if self._writers is not None:
            run.connect(self._writers)
            self._writers = None
        with self._job.errors_told():
            if after is None:
                decider.begin()
            else:
                if after.may_live_elsewhere:
                    hosts.hold("another host", job.config.options.heartbeat_timeout_s)
                decider.go_on(after, message.reason)
                self._agent.tell(LaunchEnded())

    def _greet(self, client: _Client, job: _RunningJob) -> None:
        """Tell a client all that it needs to start another head, should this one die."""
        fds = () if self._lease is None else (self._lease.fileno(),)
        greeting = ClientTaken(
            job=to_plain(job.job),
            workers=job.decider.log.launched,
            directory=str(self._agent.settings.directory),
            cwd=os.getcwd(),
            environment=dict(os.environ),
        )
        client.channel.post(to_message(greeting), fds)
        client.follow(job.decider.log)

    def _speak_to(self, fds: Sequence[int]) -> None:
        """Let lines and output go to the stdout and stderr of a new client."""
        for number, fd in enumerate(fds, start=1):
            if number <= 2:
                os.dup2(fd, number)
            os.close(fd)
        if fds:
            self._agent.streams.redirect()

    def _on_client(self, client: _Client, message: Message) -> None:
        client.silence.heard()
        if message not in _OF_CLIENT:
            return
        match _OF_CLIENT.decode(message):
            case ClientPing(columns, is_plain):
                self._screen.columns, self._screen.is_plain = columns, is_plain
                client.channel.post(to_message(HeadPong()))
            case PassSignals(numbers):
                client.has_hung_up |= signal.SIGHUP in numbers
                self.take_signals(numbers)

    def _poll_client(self, now: float) -> None:
        if self._client is not None:
            self._client.is_silent = self._client.silence.poll(now) is not None
            if self._client.is_silent:
                self._screen.columns = 0

    def _lose_client(self, client: _Client) -> None:
        if self._client is client:
            self._client = None
            self._screen.columns = 0
        client.channel.close()

    def _take_save(self, job: _RunningJob, visitor: Visitor, *, is_waiting: bool) -> None:
        channel = visitor.channel
        number = job.saves.add(
            lambda answer: channel.post(to_message(answer)), is_waiting=is_waiting
        )

        def leave() -> None:
            job.saves.forget(number)
            channel.close()

        visitor.on_message, visitor.on_end = (lambda _: None), leave

    def _handle(self, job: _RunningJob, event: News) -> None:
        """Handle one piece of news; the client gets what another head would need."""
        match event:
            case Records():
                with job.errors_told():
                    job.run.take(event)
                return
            case LogText():
                job.run.log(event)
                return
            case PlanSaves():
                job.copier.plan(event)
                return
            case HostLost():
                found = job.hosts.lose(event)
                if found is None:
                    return
                event = found
            case LaunchEnded() if self._waits_for_hosts(job):
                self._held = event
                return
        log = job.decider.log
        log.note(event)
        with job.errors_told():
            job.decider.on_event(event)
        self._tell_client(job)

    def _obey(self, order: Order) -> None:
        """Let the agent obey what the client knows of: this process may die meanwhile."""
        if self._job is not None:
            self._tell_client(self._job)
        self._agent.obey(order)

    def _tell_client(self, job: _RunningJob) -> None:
        """Let the client know what another head would need, once it was greeted."""
        if self._client is not None and self._client.is_greeted:
            self._client.follow(job.decider.log)

    def _waits_for_hosts(self, job: _RunningJob) -> bool:
        """Return whether the next launch must wait for a host; the user is told once."""
        reason = "" if job.decider.is_stopping else job.hosts.why_wait(witnessed_s())
        if reason and self._held is None:
            with job.errors_told():
                job.console.tell(Warned(reason))
        return bool(reason)

    def _dismiss(self, channel: Channel) -> None:
        self._reactor.forget(channel)
        channel.close()


class _Client:
    """The connection of the process that shows the job, if there is one."""

    def __init__(self, channel: Channel, heartbeat_timeout_s: float) -> None:
        self.channel = channel
        self.pid = channel.peer_pid
        self.silence = PeerSilence(heartbeat_timeout_s)
        self.is_silent = False
        self.has_hung_up = False
        """Whether its terminal is gone, so that nobody sees what it shows."""
        self._standing: Standing | None = None
        """What it was told last of the newest launch."""

    @property
    def is_greeted(self) -> bool:
        """Whether it can start another head."""
        return self._standing is not None

    def follow(self, log: LaunchLog) -> None:
        """Tell it what is new of the newest launch."""
        if log.standing != self._standing:
            self._standing = log.standing
            self.channel.post(to_message(log.standing))


@dataclasses.dataclass(eq=False, slots=True)
class _RunningJob:
    """A job and everything that works for it; hears of the run directory."""

    run: RunLink
    progress: ProgressLog
    console: JobConsole
    decider: Decider
    hosts: JobHosts
    saves: SaveRequests
    copier: CopierLink

    @property
    def job(self) -> Job:
        """What the job is by now."""
        return self.decider.job

    @contextlib.contextmanager
    def errors_told(self) -> Iterator[None]:
        """Run the body; an error in it ends the deciding, and nothing else."""
        try:
            yield
        except Exception as error:
            self.decider.failed(error)

    def on_record(self, entry: Entry[Any]) -> None:
        """Take note of a line of any process."""
        self.decider.on_record(entry)
        self.console.follow(entry)
        self.saves.follow(entry)
        if isinstance(entry.event, Checkpoint):
            self.copier.saved(entry.event.step)

    def on_directory(self, told: Warned | RunDirectoryLost) -> None:
        """Show a sentence about the run directory, or end the job without it."""
        with self.errors_told():
            if isinstance(told, RunDirectoryLost):
                self.decider.lose_directory(told)
            else:
                self.console.tell(told)
