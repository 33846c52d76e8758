"""Writers whose saves cost nothing, and an agent that starts them instead of processes."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import Any

import pytest

from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import FDS, Channel, Message
from holdfast.runtime.system.reactor import Reactor

PARTS = 2


class FakeWriter:
    """A writer that works when it is told to."""

    def __init__(self, fd: int) -> None:
        self.channel = Channel.adopt(fd)
        self.pid = 0
        self.saves: dict[int, set[int]] = {}
        self.held: dict[int, int] = {}
        """The step of each complete save."""
        self.plans: list[bool] = []
        """Whether it is to look after old steps, by each plan."""

    def serve(self) -> None:
        """Do what the messages so far ask for."""
        if self.channel.is_closed:
            return
        for message in self.channel.drain():
            if message["kind"] == "copied":
                self._copied(message)
            elif message["kind"] == "plan":
                self.plans.append(message.get("has_maintenance", True))
                for fd in message[FDS]:
                    os.close(fd)
            elif message["kind"] == "settle":
                step = self.held[max(self.held)] if self.held else None
                self.channel.post({"kind": "settled", "step": step})

    def _copied(self, message: Message) -> None:
        attempt = message["attempt"]
        parts = self.saves.setdefault(attempt, set())
        parts.add(message["part"])
        if len(parts) == PARTS:
            self.held[attempt] = message["step"]
            if "answered" not in message:
                names = "launch", "attempt", "step"
                answer = {name: message[name] for name in names}
                self.channel.post({"kind": "saved", **answer})

    def kill(self) -> None:
        """Die, as far as the agent can see it."""
        self.channel.close()

    def poll(self) -> int | None:
        """Return the exit status, None while it lives."""
        return -9 if self.channel.is_closed else None

    def wait(self, timeout: float) -> int:
        """End."""
        self.kill()
        return 0


class AgentOfFakes:
    """An agent's side, with writers that the test makes work and die, and a clock of its own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(subprocess, "Popen", self._start)
        self.writer: FakeWriter | None = None
        self.is_refused = False
        self.now = 0.0
        self.answers: list[Message] = []
        self.reactor = Reactor()
        self.link = WriterLink(self.reactor, self, clock=lambda: self.now)
        self.link.use({"kind": "memory", "launch": 1, "layout": "L", "bytes": 10**12}, ())

    def on_written(self, answer: Message) -> None:
        """Remember an answer about a save."""
        self.answers.append(answer)

    def on_writer_notice(self, notice: Message) -> None:
        """Ignore a sentence for the user."""

    def on_writer_records(self, message: Message) -> None:
        """Ignore records for the journal."""

    def copied(self, attempt: int, part: int, **fields: object) -> None:
        """Tell that a part of a save was copied."""
        message = {"kind": "copied", "launch": 1, "layout": "L", "generation": 1}
        numbers = {"attempt": attempt, "step": 10 * attempt, "part": part, "parts": PARTS}
        self.link.copied({**message, **numbers, "buffer": attempt % 2, **fields})

    def progress(self, nbytes: int) -> None:
        """Let the writer tell how many bytes are being written."""
        assert self.writer is not None
        self.writer.channel.post({"kind": "progress", "bytes": nbytes})
        self.hear()

    def hear(self) -> None:
        """Hear what has been told."""
        for _ in range(3):
            self.reactor.run_once(0.0)

    def close(self) -> None:
        """End the writer."""
        self.link.close()
        self.reactor.close()

    def _start(self, command: object, *, pass_fds: list[int], **options: Any) -> FakeWriter:
        if self.is_refused:
            raise OSError(errno.EAGAIN, "no more processes")
        self.writer = FakeWriter(os.dup(pass_fds[0]))
        return self.writer
