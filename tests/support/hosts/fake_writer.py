"""Writers whose work costs nothing, and an agent that starts them instead of processes."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import Any

import pytest
from host_saves import LAUNCH

from holdfast.checkpoint.shares import HEADER_BYTES
from holdfast.recovery.saves import (
    CommitSave,
    MakeSpace,
    RemoveSave,
    SaveCommitted,
    SaveRemoved,
    SaveTicket,
    ShareWritten,
    SpaceMade,
    WriteShare,
)
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.save_memory import SaveMemory
from holdfast.runtime.saving.save_messages import (
    AskMemory,
    DiskMoved,
    PlanSaves,
    ToWriter,
    WriterAnswer,
)
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import FDS, Channel, MessageKinds, to_message
from holdfast.runtime.system.reactor import Reactor

_MESSAGES: MessageKinds[ToWriter] = MessageKinds(ToWriter)


class FakeWriter:
    """A writer that works when it is told to."""

    def __init__(self, fd: int) -> None:
        self.channel = Channel.adopt(fd)
        self.pid = 0
        self.told: list[ToWriter] = []

    def serve(self) -> None:
        """Do what the messages so far ask for."""
        if self.channel.is_closed:
            return
        for line in self.channel.drain():
            for fd in line.get(FDS, ()):
                os.close(fd)
            self.told.append(message := _MESSAGES.decode(line))
            match message:
                case WriteShare(ticket, share):
                    self._answer(ShareWritten(ticket, share, ()))
                case CommitSave(ticket):
                    self._answer(SaveCommitted(ticket))
                case MakeSpace(ticket):
                    self._answer(SpaceMade(ticket))
                case RemoveSave(ticket):
                    self._answer(SaveRemoved(ticket))

    def _answer(self, answer: WriterAnswer) -> None:
        self.channel.post(to_message(answer))

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
        self.answers: list[WriterAnswer] = []
        self.reactor = Reactor()
        self.memory = SaveMemory(lambda: ())
        self.link = WriterLink(self.reactor, self._take, self.memory, clock=lambda: self.now)

    def use(self, layout: str) -> None:
        """Make the memory of a layout, and tell it."""
        question = AskMemory(layout, size=HEADER_BYTES, nbytes=1)
        self.link.use(self.memory.buffers(LAUNCH, question)[0])

    def plan(self, layout: str, generation: int = LAUNCH) -> None:
        """Let a worker of this host tell the plan of a world."""
        message = PlanSaves(generation, layout, "{}", 0, 1)
        self.memory.plan(LAUNCH, message)
        self.link.plan(message)

    def write(self, attempt: int) -> None:
        """Let the writer write a share of a save."""
        self.link.work(WriteShare(SaveTicket(LAUNCH, LAUNCH, 10 * attempt, attempt), 0, ""))

    def progress(self, nbytes: int) -> None:
        """Let the writer tell how many bytes are being written."""
        assert self.writer is not None
        self.writer.channel.post(to_message(DiskMoved(nbytes)))
        self.hear()

    def hear(self) -> None:
        """Hear what has been told."""
        for _ in range(3):
            self.reactor.run_once(0.0)

    def close(self) -> None:
        """End the writer."""
        self.link.close()
        self.reactor.close()
        self.memory.close()

    def _take(self, told: WriterAnswer | Notice | Records) -> None:
        if not isinstance(told, Notice | Records):
            self.answers.append(told)

    def _start(self, command: object, *, pass_fds: list[int], **options: Any) -> FakeWriter:
        if self.is_refused:
            raise OSError(errno.EAGAIN, "no more processes")
        self.writer = FakeWriter(os.dup(pass_fds[0]))
        return self.writer
