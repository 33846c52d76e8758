"""A host that the head reaches by a remote shell, as the launch part sees it.

The shell's stdin and stdout are the connection.  The statuses of the host's workers are mirrored:
each word has one writer, so words are copied both ways without a protocol.

A host is lost when the connection ends, or when it has not answered for the heartbeat timeout
(`recovery.detector`).  After the timeout its workers are dead.  The end of the connection ends
its agent, too, but a shell may tell that late: until then they may live.  So they need the head's
word to go on without the others (`recovery.world`).

A remote shell is called as ``SHELL HOST COMMAND...``.  ssh and rsh join the words of the command
with spaces, and a shell there splits them again.  srun and ``ip netns exec`` hand them over as they
are.  A command of plain words means the same to both, and ours has nothing else, unless the path
of the interpreter is unusual.  Then the words are quoted for a shell that joins them, as most
scripts around ssh do.

srun takes options of a step from some hundred variables: ``SLURM_LABELIO`` puts a number before
each line of ours, ``SRUN_CPUS_PER_TASK`` leaves a host one core.  Our step is what its command line
says, so srun gets only those that lead it to the cluster and the job.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.detector import HostPings
from holdfast.recovery.event import WorkerExited
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.host_messages import Down, HostLink, MakeWorkers, Up
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.hosts import wire
from holdfast.runtime.hosts.wire import Question
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.system import become
from holdfast.runtime.system.channel import ChannelError, LineChannel, Message, to_message
from holdfast.runtime.system.own_process import by_env, has_ended
from holdfast.runtime.system.processes import kill_group
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s
from holdfast.runtime.system.worker_status import StatusChanges, WorkerStatus, Writer

_FIRST_ANSWER_WITHIN_S = 60.0
"""A shell that logs in, and a Python that imports over a busy network file system."""
_UNANSWERED_SHARE, _SHORTEST_SILENCE_S = 0.3, 1.0
"""A link that was silent for so long before its end may be cut: 10 pings belong to a timeout."""
_PROLOG = "prolog"
_KILLED_WITHIN_S = 5.0
_NOBODY = -1
"""What the shell itself says is shown to those who want to see everything."""

CONNECTS_WITHIN_S = 10
"""A host that does not answer to ssh in this time is not there."""

_OF_SSH = (
    # What the user's configuration may ask for, and what lets nothing or too much pass.  An older
    # ssh does not know all of it.
    *("-T", "-o", "IgnoreUnknown=*"),
    *("-o", "StdinNull=no"),
    *("-o", "PermitLocalCommand=no"),
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECTS_WITHIN_S}"),
    # A connection that is shared with others would end with theirs.
    *("-o", "ControlPath=none"),
    # The leases decide when a host is lost, and ssh must not end before them.
    *("-o", "ServerAliveInterval=0"),
)
"""The user's own options stand before these, and ssh takes the first value of each."""

_HAND_OVER = frozenset({"srun", "ip", "nsenter", "sudo", "env", "docker", "podman", "kubectl"})
"""Programs that execute the words of a command as they are; no shell splits them again."""

_OF_SLURM = re.compile(r"SLURM_|SRUN_")
_LEADS_SRUN = re.compile(
    r"SLURM_(CONF|CONF_SERVER|JWT|SACK_\w+|(WORKING_)?CLUSTERS?|NODE_ALIASES|JOB_?ID|HET_SIZE|"
    r"ACCOUNT|PARTITION|QOS|RESERVATION|WCKEY)"
)
"""Which cluster, which job, and on whose account a step runs that is a job of its own."""

_START = Path(__file__).with_name("start.py")
_AGENT = "holdfast.runtime.hosts.agent"
"""The only program that runs on another host."""

_FOR_PYTHON = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR"),
    "LD_LIBRARY_PATH",
)
"""Variables without which Python may not start, or finds no module."""


@dataclass(frozen=True, slots=True)
class RemoteShell:
    """What starts commands on other hosts, by its own words."""

    words: tuple[str, ...]

    @staticmethod
    def of(text: str) -> RemoteShell:
        """Return the shell that ``--rsh`` names.

        Raises:
            UsageError: the text cannot be split into words, or has none.
        """
        try:
            words = tuple(map(os.path.expanduser, map(os.path.expandvars, shlex.split(text))))
        except ValueError as error:
            raise UsageError(f"--rsh {text!r} is no command: {error}") from error
        if not words:
            raise UsageError("--rsh is empty; name a remote shell, such as ssh")
        return RemoteShell(words)

    @property
    def program(self) -> str:
        """The name of its program, without a path."""
        return Path(self.words[0]).name

    @property
    def is_srun(self) -> bool:
        """Whether it starts a step of Slurm, which a TaskProlog of the site may print before."""
        return self.program == "srun"

    def agent_on(self, host: str) -> list[str]:
        """Return the command line that runs the agent of ``host``."""
        return self.command(host, python_there())

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` on ``host``."""
        options = _OF_SSH if self.program == "ssh" else ()
        is_joined = self.program not in _HAND_OVER
        words = [*self.words, *options, host, *(map(shlex.quote, argv) if is_joined else argv)]
        dropped = sorted(filter(_OF_SLURM.match, os.environ)) if self.is_srun else []
        unset = [f"-u{name}" for name in dropped if not _LEADS_SRUN.fullmatch(name)]
        return ["env", *unset, *words] if unset else words


def python_there(
    module: str = _AGENT, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the command that runs a module of holdfast on a host with this very installation.

    The working directory there is nobody's business: modules are not looked for in it.
    """
    known = os.environ if environment is None else environment
    variables = tuple(f"{name}={known[name]}" for name in _FOR_PYTHON if known.get(name))
    before = ("env", *variables) if variables else ()
    return (*before, sys.executable, str(_START), module)


@dataclass(frozen=True, slots=True)
class HostStart:
    """How the agent of a host is started: its command, and what it is told first.

    A host that was lost, or whose head was, is asked the ``question`` before it gets its greeting.
    ``examine`` takes its answer, and returns why it may not work, "" if it may.
    """

    command: Sequence[str]
    greeting: wire.Greeting
    question: Question | None = None
    examine: Callable[[Message], str] = lambda _: ""


class _BehindProlog(LineChannel):
    """A connection whose first message comes behind what a site prints before each step."""

    _has_begun = False

    def _decode(self, line: bytearray) -> Message:
        try:
            message = super()._decode(line)
        except ChannelError:
            if self._has_begun:
                raise
            return {"kind": _PROLOG}
        self._has_begun = True
        return message


class RemoteHost:
    """One other host of the job, from the start of its agent to its end or its loss."""

    def __init__(
        self,
        reactor: Reactor,
        output: OutputForwarder,
        start: HostStart,
        on_message: Callable[[HostLink, Up], None],
        on_lost: Callable[[HostLink, str], None],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the agent; ``on_ready`` hears of its first answer to a ping.

        Raises:
            OSError: the remote shell cannot be started.
        """
        self._start = start
        self.name = start.greeting.host
        self._reactor = reactor
        self._output = output
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_ready = on_ready
        self._timeout_s = start.greeting.heartbeat_timeout_s
        self._pings = self._first_pings()
        self._mirrors: dict[tuple[int, WorkerId], tuple[WorkerStatus, StatusChanges]] = {}
        self.has_wishes = False
        """Whether words of the agent in a mirror may have changed."""
        self._ahead_s = float("inf")
        """How far our clock is ahead of the host's; the fastest message knows best."""
        self._shell = _started(start.command)
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        assert self._shell.stderr is not None
        fds = (self._shell.stdout.fileno(), self._shell.stdin.fileno())
        self._channel = _BehindProlog(*map(os.dup, fds))
        self._held: list[Down] = []
        """What waits for the greeting."""
        said_fd = os.dup(self._shell.stderr.fileno())
        self._said = output.forward(said_fd, f"[{self.name}] ", 2, worker=_NOBODY)
        for pipe in (self._shell.stdin, self._shell.stdout, self._shell.stderr):
            pipe.close()
        self._is_greeted = self._is_ready = self._has_no_shell = False
        self.is_lost = self._is_loss_told = False
        self._why_dismissed = ""
        reactor.watch_channel(self._channel, self._take, self._on_end)
        if start.question is None:
            self._greet()
        else:
            self._post(start.question)

    @property
    def pid(self) -> int:
        """The process of the remote shell."""
        return self._shell.pid

    @property
    def unheard_s(self) -> float:
        """For how long it has not answered."""
        return self._pings.silent_s

    @property
    def leased_s(self) -> float:
        """For how long its workers may live on, if it learns of nothing: until their lease ends."""
        return max(0.0, self._pings.timeout_s - self._pings.silent_s)

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        """Tell the host something; descriptors stay here, where they have a meaning."""
        for fd in fds:
            os.close(fd)
        if self.is_lost:
            return
        if isinstance(message, MakeWorkers):
            for worker in message.workers:
                status = WorkerStatus.mirror(self._wish)
                changes = StatusChanges(status, Writer.AGENT)
                self._mirrors[(message.generation, worker)] = (status, changes)
        if self._is_greeted:
            self._post(message)
        else:
            self._held.append(message)

    def _post(self, message: wire.FromHead | wire.Opening) -> None:
        self._channel.post(to_message(message))

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        """Return the mirror of the status of a worker that the host was told to make."""
        return self._mirrors[(generation, worker)][0]

    def poll(self, now: float) -> None:
        """Ping if it is time, and give up a host that has been silent for too long."""
        if self.is_lost:
            return
        self._pings = self._pings.polled(now)
        if self._pings.is_lost:
            self.give_up(f"it has not answered for {self._pings.silent_s:.1f} s")
        elif self._pings.is_ping_due and self._is_greeted and not self._has_no_shell:
            self._ping()

    def _wish(self) -> None:
        self.has_wishes = True

    def push(self) -> None:
        """Send what has changed in the words of the agent: requests, and answers to saves."""
        if self.is_lost or not self._is_greeted:
            return
        self.has_wishes = False
        looks = [wire.Changes(*key, changes.look()) for key, (_, changes) in self._mirrors.items()]
        changed = tuple(look for look in looks if look.words)
        if changed:
            self._post(wire.Words(changed, time.monotonic()))

    def dismiss(self, why: str) -> None:
        """Let the agent end its workers and itself; the host is lost then, for this reason."""
        self._why_dismissed = why
        if self._mirrors:
            self._post(wire.EndHost(why))
        else:
            self.give_up(why)

    def end(self) -> None:
        """Tell the agent that the job has ended; wait for nothing."""
        if not self.is_lost:
            self.is_lost = True
            self._reactor.forget(self._channel)
            if self._is_greeted:
                self._post(wire.EndHost())
            else:  # the end of the connection says the same
                self._channel.close()

    def close(self, within_s: float) -> None:
        """Show the last output, and wait for the end of the shell; one that does not end is killed.

        No wait is long: a shell that hangs in the kernel stays.
        """
        self.end()
        bound = Bound(within_s)
        for messages in self._channel.serve(bound):
            for message in messages:
                with contextlib.suppress(ValueError):
                    if isinstance(last := wire.FROM_HOST.decode(message), wire.Output):
                        self._show(last)
        self._channel.close()
        if not has_ended(self._shell, bound.left_s()):
            kill_group(self._shell.pid)
            has_ended(self._shell, _KILLED_WITHIN_S)

    def _take(self, line: Message) -> None:
        """Take a message; a host that sends what makes no sense is of no use."""
        if self.is_lost or line.get("kind") == _PROLOG:
            return
        if not self._is_greeted:
            self._take_answer(line)
            return
        try:
            self._read(wire.FROM_HOST.decode(line))
        except (KeyError, TypeError, ValueError) as error:
            self.give_up(f"it sent what makes no sense: {type(error).__name__}: {error}")

    def _take_answer(self, line: Message) -> None:
        """Let a host work that is as it was when the job began."""
        if self._start.examine(line):
            self.give_up("it is not as it was when the job began")  # the head tells what differs
        else:
            self._pings = self._first_pings()
            self._greet()

    def _read(self, message: wire.FromHost) -> None:
        match message:
            case wire.Pong(number):
                self._take_pong(number)
            case wire.Words(of, clock):
                self._ahead_s = min(self._ahead_s, time.monotonic() - clock)
                for found in of:
                    mirror, _ = self._mirrors.get((found.generation, found.worker), (None, None))
                    if mirror is not None:
                        mirror.take(self._by_our_clock(found.words), Writer.WORKER)
            case wire.Output():
                self._show(message)
            case _:
                self._hear(message)
        taken = wire.taken_bytes(message)
        if taken:
            self._post(wire.Taken(taken))

    def _take_pong(self, number: int) -> None:
        self._pings = self._pings.answered(number)
        if not self._is_ready:
            self._is_ready = True
            sent, heard = self._pings.sent, self._pings.heard
            self._pings = HostPings(self._timeout_s, witnessed_s(), sent, heard)
            self._on_ready()
        if self._pings.is_ping_due:
            self._ping()

    def _show(self, output: wire.Output) -> None:
        self._output.put(output.fd, output.lines.encode(wire.TEXT))

    def _first_pings(self) -> HostPings:
        return HostPings(max(self._timeout_s, _FIRST_ANSWER_WITHIN_S), witnessed_s())

    def _greet(self) -> None:
        self._is_greeted = True
        self._post(self._start.greeting)
        for message in self._held:
            self._post(message)
        self._held.clear()

    def _by_our_clock(self, changes: Message) -> Message:
        """Return the words of a worker; its moments are those of another clock."""
        told = changes.get("progress")
        report = None if told is None else StepReport.decode(told.encode(wire.TEXT))
        if report is None:
            return changes
        return {**changes, "progress": report.by_clock(self._ahead_s).encode().decode(wire.TEXT)}

    def _hear(self, found: Up) -> None:
        if isinstance(found, WorkerExited):
            self._mirrors.pop((found.generation or 0, found.worker), None)
        self._on_message(self, found)
        if self._why_dismissed and not self._mirrors:  # the job may end before the agent does
            self._tell_loss(self._why_dismissed)

    def _ping(self) -> None:
        self._pings = self._pings.pinged()
        self._post(wire.Ping(self._pings.sent, self._pings.heard))

    def _on_end(self) -> None:
        """Give the host up, if the end can have come from there.

        A shell may also end here, beside a link that is cut: then only the clock tells when the
        workers there are dead.
        """
        unanswered_s = max(_UNANSWERED_SHARE * self._timeout_s, _SHORTEST_SILENCE_S)
        is_cut = self._is_ready and self._pings.silent_s > unanswered_s
        if is_cut and not self._why_dismissed:
            self._has_no_shell = True
        else:
            words = " ".join(self._said.last_lines()[-2:]).strip().rstrip(".")
            self.give_up(words or "the connection has ended")

    def give_up(self, why: str) -> None:
        """Lose a host that is of no use any more."""
        if self.is_lost:
            return
        self.is_lost = True
        self._reactor.forget(self._channel)
        self._channel.flush()
        self._channel.close()
        self._mirrors.clear()
        with contextlib.suppress(ProcessLookupError):  # one whose link is dead waits for minutes
            os.killpg(self._shell.pid, signal.SIGTERM)
        self._tell_loss(self._why_dismissed or why)

    def _tell_loss(self, why: str) -> None:
        if not self._is_loss_told:
            self._is_loss_told = True
            self._on_lost(self, why)

    @property
    def has_ended(self) -> bool:
        """Whether the host is lost and its shell is gone."""
        return self.is_lost and self._shell.poll() is not None


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a remote shell that dies with this process, in a session of its own."""
    shim = (sys.executable, "-I", "-S", str(become.__file__), str(os.getpid()))
    with blocked():
        return subprocess.Popen(
            by_env([*shim, *command]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
