"""The host's agent as the supervisor sees it: a process, and a channel to talk over.

A supervisor starts its agent, or takes over the agent of a supervisor that is gone.  Either
way it asks every now and then whether the agent still answers.  An agent that stands still
is killed, and its workers with it: nobody else could tell deaths from silence.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.recovery.detector import Pause, PauseWatch
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.host.supervisor_link import (
    SHORTEST_SILENCE_S,
    SOCKET_NAME,
    PeerSilence,
    StandingStill,
)
from holdfast.runtime.system.channel import Channel, Message, connect
from holdfast.runtime.system.own_process import module_command
from holdfast.runtime.system.processes import HeldProcess
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s

_CONNECT_WITHIN_S = 60.0
"""A cold virtual environment on a network file system takes that long."""
_RETRY_S = 0.005
_STARTS = 3
"""An agent that is killed or stopped before it listens is started again, as it is later."""
_END_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """The terms of an agent's start; ``lease`` is a descriptor that it keeps open.

    Supervisor or agent, the one that lives longer removes the private ``directory``.
    """

    directory: Path
    cwd: Path
    heartbeat_timeout_s: float
    preload: tuple[str, ...]
    lease: int
    verbose: bool

    def command(self) -> list[str]:
        """Return the agent's command line."""
        return [
            *module_command("holdfast.runtime.host"),
            *("--directory", str(self.directory), "--private"),
            # The agent may begin after this process has died, and cannot ask for its old parent.
            *("--parent", str(os.getpid())),
            *("--heartbeat-timeout", str(self.heartbeat_timeout_s)),
            *("--preload", ",".join(self.preload)),
            *("--lease-fd", str(self.lease)),
            *(["--verbose"] if self.verbose else []),
        ]


def begin_agent(terms: AgentTerms, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start an agent, in a session of its own, and do not wait for it.

    Raises:
        OSError: the system has no process or descriptor to spare.
    """
    with blocked():  # until it has handlers of its own
        return subprocess.Popen(
            terms.command(),
            # Scripts make vocabularies from sets of words, in the order of their hashes.
            env={"PYTHONHASHSEED": "0", **environment},
            cwd=terms.cwd,
            stdin=subprocess.DEVNULL,
            pass_fds=(terms.lease,),
            start_new_session=True,
        )


def dismiss_agent(begun: subprocess.Popen[bytes]) -> None:
    """End an agent that nobody has spoken to; its pool ends with it."""
    begun.kill()
    begun.wait()


def start_agent(
    terms: AgentTerms,
    environment: Mapping[str, str],
    begun: subprocess.Popen[bytes] | None = None,
    on_pause: Callable[[Pause], None] = lambda _: None,
) -> AgentProcess:
    """Start an agent and connect to it; ``begun`` is one that was started with these terms.

    ``on_pause`` hears of a time in which this process stood still, and the job with it.

    Raises:
        RecoveryImpossible: the agent ended or did not answer.
    """
    child = begun
    for _ in range(1, _STARTS):
        try:
            return _connect(child or begin_agent(terms, environment), terms, on_pause)
        except _Struck:
            child = None
    return _connect(child or begin_agent(terms, environment), terms, on_pause)


class _Struck(RecoveryImpossible):
    """A signal ended the agent, or stopped it for so long that it was killed."""


def _connect(
    child: subprocess.Popen[bytes], terms: AgentTerms, on_pause: Callable[[Pause], None]
) -> AgentProcess:
    channel = _connected(child, terms, on_pause)
    process = HeldProcess.of_peer(channel)
    if process is None:
        raise _not_started(child)
    channel.post({"kind": "supervisor"})
    return AgentProcess(channel, process, terms.heartbeat_timeout_s, child)


class AgentProcess:
    """A running agent; ``child`` if this process has started it."""

    def __init__(
        self,
        channel: Channel,
        process: HeldProcess,
        heartbeat_timeout_s: float,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.channel = channel
        self._process = process
        self._child = child
        self._silence = PeerSilence(heartbeat_timeout_s)

    @property
    def child(self) -> int | None:
        """The process id of the agent, if this process has started it."""
        return None if self._child is None else self._child.pid

    def tell(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send an order; ignore an agent that is gone, because its end is handled elsewhere."""
        self.channel.post(message, fds)

    def heard(self) -> None:
        """Take note that the agent has sent something."""
        self._silence.heard()

    def silence_s(self, now: float, *, draws: bool = False) -> float | None:
        """Ask for a sign of life; return for how long there was none, if that is too long.

        The agent hears with it whether this process ``draws`` a live line on its terminal.
        """
        self.tell({"kind": "ping", "draws": draws})
        return self._silence.poll(now)

    def kill(self) -> None:
        """SIGKILL the agent; the kernel does the same to its workers, pool, writer and mpiexec."""
        self._process.kill()

    def leave(self) -> None:
        """Let the agent go on by itself."""
        self.channel.close()

    def end(self) -> None:
        """Tell the agent to kill its workers and end; wait for it, at most 10 s, twice."""
        self.channel.post({"kind": "shutdown"})
        self.channel.close()
        if not self._process.has_ended(_END_WITHIN_S):
            self.kill()
            self._process.has_ended(_END_WITHIN_S)
        self._process.close()
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)


def _connected(
    child: subprocess.Popen[bytes], terms: AgentTerms, on_pause: Callable[[Pause], None]
) -> Channel:
    """Return a channel as soon as the agent listens."""
    path = terms.directory / SOCKET_NAME
    bound = Bound(_CONNECT_WITHIN_S)
    standing = StandingStill(max(terms.heartbeat_timeout_s, SHORTEST_SILENCE_S))
    pauses = PauseWatch(_RETRY_S)
    while child.poll() is None and not bound.has_passed:
        pauses = pauses.observe({}, time.monotonic())
        if pauses.pause is not None:
            on_pause(pauses.pause)
        try:
            return connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(_RETRY_S)
        if standing.poll([child.pid], witnessed_s()):
            child.kill()
            child.wait()
    raise _not_started(child)


def _not_started(child: subprocess.Popen[bytes]) -> RecoveryImpossible:
    is_struck = (child.poll() or 0) < 0
    child.kill()
    code = child.wait()
    kind = _Struck if is_struck else RecoveryImpossible
    return kind(
        f"the agent of this host did not start (exit code {code}); "
        "its messages are above; run `holdfast doctor`"
    )
