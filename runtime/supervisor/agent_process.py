"""The host's agent as the supervisor sees it: a process to start, a channel to talk over."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.agent.agent import SOCKET_NAME
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.system.channel import Channel, Message, connect
from holdfast.runtime.system.helper_process import module_command

_CONNECT_WITHIN_S = 20.0
_RETRY_S = 0.005
_END_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """The terms of an agent's start; ``lease`` is a descriptor that it keeps open.

    Supervisor or agent, the one that lives longer removes the private ``directory``.
    """

    directory: Path
    heartbeat_timeout_s: float
    preload: tuple[str, ...]
    lease: int
    verbose: bool

    def command(self) -> list[str]:
        """Return the agent's command line."""
        return [
            *module_command("holdfast.runtime.agent"),
            *("--directory", str(self.directory), "--private"),
            # The agent may begin after this process has died, and cannot ask for its old parent.
            *("--parent", str(os.getpid())),
            *("--heartbeat-timeout", str(self.heartbeat_timeout_s)),
            *("--preload", ",".join(self.preload)),
            *(["--verbose"] if self.verbose else []),
        ]


class AgentProcess:
    """A running agent; it is in a session of its own and survives its supervisor."""

    def __init__(self, terms: AgentTerms, environment: Mapping[str, str]) -> None:
        """Start the agent and connect to it.

        Raises:
            RecoveryImpossible: the agent ended or did not answer.
        """
        self._process = subprocess.Popen(
            terms.command(),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=(terms.lease,),
            start_new_session=True,
        )
        self.channel = self._connect(terms.directory / SOCKET_NAME)
        self.channel.send({"kind": "supervisor"})

    @property
    def socket(self) -> Path:
        """The path at which guards find the agent."""
        return self._socket

    def tell(self, message: Message) -> None:
        """Send an order; ignore an agent that is gone, because its end is handled elsewhere."""
        self.channel.post(message)

    def end(self) -> None:
        """Tell the agent to kill its workers and end; wait for it."""
        with contextlib.suppress(OSError):
            self.channel.send({"kind": "shutdown"})
        self.channel.close()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _connect(self, path: Path) -> Channel:
        """Return a channel as soon as the agent listens."""
        self._socket = path
        deadline = time.monotonic() + _CONNECT_WITHIN_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                return connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(_RETRY_S)
        self._process.kill()
        code = self._process.wait()
        raise RecoveryImpossible(
            f"the agent of this host did not start (exit code {code}); "
            "its messages are above; run `holdfast doctor`"
        )
