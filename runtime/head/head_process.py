"""A head as its client sees it: a process, and a channel to talk over.

A client starts the head of its job, or finds that of a client that is gone (`living_job`).  Either
way it asks every now and then whether the head still answers.  A head that stands still is killed,
and its workers with it: nobody else could tell deaths from silence.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.head.visits import ClientPing
from holdfast.runtime.system.channel import Channel, connect, to_message
from holdfast.runtime.system.own_process import by_env, has_ended, module_command
from holdfast.runtime.system.owned_directory import SOCKET_NAME, make_again
from holdfast.runtime.system.processes import (
    SHORTEST_SILENCE_S,
    HeldProcess,
    PeerSilence,
    StoppedProcesses,
)
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s

_IS_PLAIN = bool(os.environ.get("NO_COLOR"))
"""Whether the user of this client wants no colours (no-color.org)."""

_CONNECT_WITHIN_S = 60.0
"""A cold virtual environment on a network file system takes that long."""
_RETRY_S = 0.005
_STARTS = 3
"""A head that is killed or stopped before it listens is started again, as it is later."""
_STARTS_WITHIN_S, _STARTED_AGAIN_AFTER_S = 30.0, 0.5
_END_WITHIN_S = 30.0
"""The last save may still be written; a head that hangs is killed."""
STOPPED_ENDS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class HeadTerms:
    """The terms of a head's start; ``lease`` is a descriptor that it keeps open."""

    directory: Path
    """Its private directory in memory, which it removes at its end."""
    cwd: Path
    environment: Mapping[str, str]
    heartbeat_timeout_s: float
    preload: tuple[str, ...]
    lease: int
    verbose: bool

    def command(self) -> list[str]:
        """Return the head's command line."""
        return [
            *module_command("holdfast.runtime.head"),
            *("--directory", str(self.directory)),
            # The head may begin after this process has died, and cannot ask for its old parent.
            *("--parent", str(os.getpid())),
            *("--heartbeat-timeout", str(self.heartbeat_timeout_s)),
            *("--preload", ",".join(self.preload)),
            *("--lease-fd", str(self.lease)),
            *(["--verbose"] if self.verbose else []),
        ]


class HeadProcess:
    """A running head; ``child`` if this process has started it."""

    def __init__(
        self,
        channel: Channel,
        process: HeldProcess,
        heartbeat_timeout_s: float,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.channel = channel
        self.process = process
        self.child = child
        self._silence = PeerSilence(heartbeat_timeout_s)

    def heard(self) -> None:
        """Take note that the head has sent something."""
        self._silence.heard()

    def silence_s(self, now: float, columns: int) -> float | None:
        """Ask for a sign of life; return for how long there was none, if that is too long.

        The head hears with it how many ``columns`` a live line may have on this terminal.
        """
        self.channel.post(to_message(ClientPing(columns, _IS_PLAIN)))
        return self._silence.poll(now)

    def end(self) -> None:
        """Wait for the end of a head whose job is over; kill one that does not end."""
        self.channel.close()
        if not self.process.has_ended(_END_WITHIN_S):
            self.process.kill()
            self.process.has_ended(STOPPED_ENDS_WITHIN_S)
        self.process.close()
        if self.child is not None:
            has_ended(self.child, 1.0)


def begin_head(terms: HeadTerms) -> subprocess.Popen[bytes]:
    """Start a head, in a session of its own, and do not wait for it.

    Raises:
        OSError: the system has no process or descriptor to spare.
    """
    with blocked():  # until it has handlers of its own
        return subprocess.Popen(
            by_env(terms.command()),
            # Scripts make vocabularies from sets of words, in the order of their hashes.
            env={"PYTHONHASHSEED": "0", **terms.environment},
            cwd=terms.cwd,
            stdin=subprocess.DEVNULL,
            pass_fds=(terms.lease,),
            start_new_session=True,
        )


def connect_to_head(terms: HeadTerms, begun: subprocess.Popen[bytes] | None = None) -> HeadProcess:
    """Return a head that listens, started now unless one was ``begun`` with these terms.

    One that is struck before it listens is followed by another one.  A system that has nothing to
    spare is asked again for a while.

    Raises:
        RecoveryImpossible: it ended or did not answer, or cannot be started.
    """
    bound, starts = Bound(_STARTS_WITHIN_S), 0
    while True:
        try:
            make_again(terms.directory)  # the last one may have removed it
            child = begun or begin_head(terms)
        except OSError as error:
            if bound.has_passed:
                raise RecoveryImpossible(
                    f"no agent of this host can be started: {error}; remove the cause, then run "
                    "again: the run goes on from its newest checkpoint"
                ) from error
            time.sleep(_STARTED_AGAIN_AFTER_S)
            continue
        starts += 1
        channel = _connected(child, terms)
        process = None if channel is None else HeldProcess.of_peer(channel)
        if channel is not None and process is not None:
            return HeadProcess(channel, process, terms.heartbeat_timeout_s, child)
        begun, is_struck = None, (child.poll() or 0) < 0
        child.kill()
        has_ended(child, STOPPED_ENDS_WITHIN_S)
        if not is_struck or starts == _STARTS:
            break
    raise RecoveryImpossible(
        f"the agent of this host did not start (exit code {child.poll()}); "
        "its messages are above; run `holdfast doctor`"
    )


def _connected(child: subprocess.Popen[bytes], terms: HeadTerms) -> Channel | None:
    """Return a channel as soon as the head listens; None if it has ended or does not."""
    path = terms.directory / SOCKET_NAME
    bound = Bound(_CONNECT_WITHIN_S)
    stopped = StoppedProcesses(max(terms.heartbeat_timeout_s, SHORTEST_SILENCE_S))
    while child.poll() is None and not bound.has_passed:
        try:
            return connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(_RETRY_S)
        if stopped.poll([child.pid], witnessed_s()):
            child.kill()
            has_ended(child, STOPPED_ENDS_WITHIN_S)
            break
    return None
