"""The agent's handle on the process that writes its workers' snapshots.

Invariant: every snapshot is answered exactly once, by the writer or, when that has
died, here.  A writer that died is replaced when the next snapshot comes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.runtime.channel import FDS, Channel, Message, pair
from holdfast.runtime.reactor import Reactor

_SETTLED_WITHIN_S = 60.0
"""A disk that hangs must not keep the job from its relaunch for ever."""
_ENDED_WITHIN_S = 5.0

_Key = tuple[int, int, int]


class WriterOwner(Protocol):
    """Whoever hosts the workers whose snapshots are written."""

    def on_written(self, answer: Message) -> None:
        """Take note of an answer: kind ``durable`` or ``failed``, of a worker's attempt."""


class WriterLink:
    """Hands snapshots over and passes the answers on."""

    def __init__(self, reactor: Reactor, owner: WriterOwner) -> None:
        self._reactor = reactor
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._pending: dict[_Key, Message] = {}
        self._then: Callable[[int | None], None] | None = None
        self._deadline = 0.0

    @property
    def pid(self) -> int | None:
        """The writer's process, if there is one."""
        return None if self._process is None else self._process.pid

    @property
    def is_settling(self) -> bool:
        """Whether somebody waits for what is left to be committed."""
        return self._then is not None

    def start(self) -> None:
        """Have the writer ready before the first snapshot."""
        self._connected()

    def write(self, snapshot: Message) -> None:
        """Have a snapshot written; owns its descriptor from now on."""
        self._pending[_key(snapshot)] = snapshot
        fields = {name: value for name, value in snapshot.items() if name != FDS}
        self._connected().post(fields, snapshot[FDS])

    def settle(self, then: Callable[[int | None], None]) -> None:
        """Have what is complete committed, then call ``then`` with the step of it, if any."""
        if self._channel is None:
            then(None)
            return
        self._then = then
        self._deadline = time.monotonic() + _SETTLED_WITHIN_S
        self._channel.post({"kind": "settle"})

    def look(self, now: float) -> None:
        """Wait no longer than is good for a writer that has to settle."""
        if self._then is not None and now >= self._deadline and self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Let the writer finish what it has, for a moment, and end it."""
        if self._process is None or self._channel is None:
            return
        self._reactor.forget(self._channel)
        self._channel.close()
        try:
            self._process.wait(_ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget_process()

    def _connected(self) -> Channel:
        if self._channel is None:
            ours, theirs = pair()
            command = [sys.executable, "-m", "holdfast.runtime.snapshot_writer"]
            command += ["--control-fd", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
            theirs.close()
            self._reactor.watch_channel(ours, self._on_message, self._on_death)
            self._channel = ours
        return self._channel

    def _on_message(self, message: Message) -> None:
        if message["kind"] == "settled":
            self._settled(message["step"])
        else:
            self._answer(message)

    def _on_death(self) -> None:
        """Answer for the dead; the end of its channel is its death."""
        assert self._channel is not None
        assert self._process is not None
        self._channel.close()
        self._process.kill()
        status = self._process.wait()
        self._forget_process()
        for snapshot in list(self._pending.values()):
            reason = f"the process that writes snapshots has died (status {status})"
            self._answer({**snapshot, "kind": "failed", "reason": reason})
        self._settled(None)

    def _answer(self, answer: Message) -> None:
        snapshot = self._pending.pop(_key(answer), None)
        if snapshot is not None:
            os.close(snapshot[FDS][0])
        self._owner.on_written(answer)

    def _settled(self, step: int | None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(step)

    def _forget_process(self) -> None:
        self._process = self._channel = None


def _key(message: dict[str, Any]) -> _Key:
    return (message["launch"], message["worker"], message["attempt"])
