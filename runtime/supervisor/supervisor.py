"""The process that owns a job, outside MPI: ``holdfast run``.

It starts the agent, passes every event to `recovery.job`, and carries out the commands.
The agent starts everything else.  It never imports MPI, TensorFlow or HDF5.  Nothing in training
waits for it: when it is killed, the job goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

from holdfast.recovery.event import (
    AskToStop,
    CheckpointCommitted,
    Command,
    End,
    Event,
    KillLaunch,
    Launch,
    LaunchEnded,
    StopAsked,
    WorkerExited,
)
from holdfast.recovery.job import JobMachine, JobTerms
from holdfast.runtime.errors import ExitCode, JobError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.run_restorer import RunKeeper
from holdfast.runtime.supervisor.agent_events import event_of
from holdfast.runtime.supervisor.agent_process import AgentProcess, AgentTerms
from holdfast.runtime.supervisor.job_log import Narration
from holdfast.runtime.supervisor.job_setup import JobSetup, prepare_job
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.reactor import Reactor

_SEGMENT_BYTES = 1 << 24
"""What Open MPI maps for each rank (``btl_sm_segment_size``)."""

_SIGNALS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
}
_WATCHED = (*_SIGNALS, signal.SIGUSR2)


def run_job(options: JobOptions) -> ExitCode:
    """Run the job of ``config`` to its end; return the exit code.

    Raises:
        JobError: the job cannot begin; nothing was started.
    """
    setup = prepare_job(options)
    prefix = f"holdfast-{os.getpid()}-"
    base = Path(tempfile.mkdtemp(prefix=prefix, dir=_memory_directory(options)))
    handlers = {number: signal.getsignal(number) for number in _WATCHED}
    is_left = False
    try:
        supervisor = Supervisor(setup, base)
        try:
            return supervisor.run()
        finally:
            is_left = supervisor.is_left
            supervisor.close()
    finally:
        if not is_left:
            shutil.rmtree(base, ignore_errors=True)
        # Last: no signal may end this process before everything is cleaned up.
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _memory_directory(options: JobOptions) -> str | None:
    """Return where shared memory files belong, if the system has such a place with enough room.

    Workers talk through these files alone: without room for them they would wait for ever.
    """
    place = "/dev/shm"
    needed = _SEGMENT_BYTES * (options.workers + options.spares)
    if not os.access(place, os.W_OK | os.X_OK) or shutil.disk_usage(place).free < needed:
        return None
    return place


class Supervisor:
    """Carries events to the job's machine and its commands to the agent."""

    def __init__(self, setup: JobSetup, base: Path) -> None:
        self._setup = setup
        self._base = base
        self._narration = Narration(setup.journal, is_verbose=setup.options.verbose)
        workers = setup.options.workers + setup.options.spares
        self._machine = JobMachine(
            JobTerms(
                workers=workers,
                max_restarts=setup.options.max_restarts,
                # The death of a single worker leaves no survivor that would wait for ever.
                can_shrink=setup.options.shrink or workers == 1,
                first_generation=setup.first_generation,
            )
        )
        self._keeper = RunKeeper(
            RunDirectory(setup.options.run_dir),
            setup.record,
            setup.lease,
            self._narration.warned,
        )
        self._reactor = Reactor()
        self._agent: AgentProcess | None = None
        self._is_launched = False
        self._end: End | None = None
        self.is_left = False
        """Whether agent and mpiexec go on without this supervisor."""
        self._watch_signals()

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
        self._narration.began(self._setup)
        self._obey(self._machine.start())
        while self._end is None:
            self._reactor.run_once(None)
        self._keeper.look()
        self._narration.ended(self._end)
        return self._end.exit_code

    def close(self) -> None:
        """End every process that was started, unless they must go on without the supervisor."""
        if self.is_left:
            self._leave()
            return
        if self._agent is not None:
            self._reactor.forget(self._agent.channel)
            self._agent.end()
        self._reactor.close()

    def _leave(self) -> None:
        """Close the channel alone: the agent removes the job's directory at the end."""
        self._reactor.close()
        if self._agent is not None:
            self._agent.channel.close()

    def _watch_signals(self) -> None:
        """Turn SIGINT, SIGTERM and SIGUSR2 into events of the loop."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        for number in _WATCHED:
            signal.signal(number, lambda *_: None)
        self._reactor.watch(wake_read, lambda: self._on_signals(os.read(wake_read, 64)))

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGUSR2 and self._agent is not None:
                self._agent.tell({"kind": "request", "what": "save"})
            elif number in _SIGNALS:
                self._narration.signalled(signal.Signals(number).name)
                self._handle(StopAsked(_SIGNALS[signal.Signals(number)]))

    def _handle(self, event: Event) -> None:
        if self._end is None:
            self._obey(self._machine.handle(event))

    def _obey(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            match command:
                case Launch():
                    self._begin(command)
                case KillLaunch(reason):
                    self._narration.killing(reason)
                    self._tell({"kind": "kill"})
                case AskToStop():
                    self._tell({"kind": "request", "what": "stop"})
                case End():
                    self._end = command

    def _begin(self, command: Launch) -> None:
        """Start one launch; the agent is started with the first, and again if it has died."""
        self._narration.launching(command)
        if self._agent is None:
            self._agent = self._start_agent()
        mpi = {"mpiexec": str(self._setup.mpiexec), "ulfm": self._setup.options.shrink}
        config = self._setup.worker_config(command).to_json()
        self._tell({"kind": "launch", "config": config, "mpi": mpi})
        self._is_launched = True

    def _start_agent(self) -> AgentProcess:
        options = self._setup.options
        terms = AgentTerms(
            directory=self._base,
            heartbeat_timeout_s=options.heartbeat_timeout_s,
            preload=self._setup.preload,
            lease=self._setup.lease.fileno(),
            verbose=options.verbose,
        )
        agent = AgentProcess(terms, self._setup.environment)
        self._reactor.watch_channel(agent.channel, self._on_message, self._on_agent_end)
        return agent

    def _on_message(self, message: Message) -> None:
        """Log a message of the agent, and pass its event to the machine."""
        self._narration.heard(message)
        event = event_of(message)
        if isinstance(event, CheckpointCommitted):
            self._keeper.look()
        if event is not None:
            self._handle(event)

    def _on_agent_end(self) -> None:
        """Report the end of the launch: the kernel has killed all its processes with the agent."""
        self._narration.lost_agent()
        if self._agent is not None:
            self._agent.end()
            self._agent = None
        view = self._machine.view
        for worker in sorted(set(view.workers) - set(view.exits)):
            self._handle(WorkerExited(worker, is_clean=False, cause="its agent died"))
        self._handle(LaunchEnded())

    def _tell(self, message: Message) -> None:
        if self._agent is not None:
            self._agent.tell(message)
