"""Writers whose saves cost nothing, and an agent that starts them instead of processes."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import Any

import pytest

from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    PartCopied,
    PlanSaves,
    SaveAnswered,
    SaveCopied,
    SaveTicket,
    Settle,
    Settled,
    ToWriter,
    UseMemory,
)
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import FDS, Channel, Message, MessageKinds, to_message
from holdfast.runtime.system.reactor import Reactor

PARTS = 2
_MESSAGES: MessageKinds[ToWriter] = MessageKinds(ToWriter)


class FakeWriter:
    """A writer that works when it is told to."""

    def __init__(self, fd: int) -> None:
        self.channel = Channel.adopt(fd)
        self.pid = 0
        self.held: dict[int, int] = {}
        """The step of each complete save."""
        self.plans: list[bool] = []
        """Whether it is to look after old steps, by each plan."""

    def serve(self) -> None:
        """Do what the messages so far ask for."""
        if self.channel.is_closed:
            return
        for line in self.channel.drain():
            match message := _MESSAGES.decode(line):
                case SaveCopied(ticket, _, was_durable):
                    self.held[ticket.attempt] = ticket.step
                    if was_durable is None:
                        self.channel.post(to_message(SaveAnswered(ticket, is_durable=True)))
                case PlanSaves():
                    self.plans.append(message.has_maintenance)
                    for fd in line[FDS]:
                        os.close(fd)
                case Settle():
                    step = self.held[max(self.held)] if self.held else None
                    self.channel.post(to_message(Settled(step)))

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
        self.answers: list[SaveAnswered] = []
        self.settled: list[int | None] = []
        self.reactor = Reactor()
        self.link = WriterLink(self.reactor, self._take, clock=lambda: self.now)
        self.link.use(UseMemory(1, "L"), ())

    def _take(self, told: SaveAnswered | Settled | Message) -> None:
        if isinstance(told, SaveAnswered):
            self.answers.append(told)
        elif isinstance(told, Settled):
            self.settled.append(told.step)

    def copied(self, attempt: int, part: int, generation: int = 1) -> None:
        """Tell that a part of a save was copied."""
        ticket = SaveTicket(1, generation, 10 * attempt, attempt, PARTS, 0.0, attempt % 2, "L")
        self.link.copied(PartCopied(ticket, part, ""), ())

    def plan(self, generation: int) -> None:
        """Tell the plan of a world."""
        self.link.plan(PlanSaves(generation), (os.memfd_create("test", os.MFD_CLOEXEC),))

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

    def _start(self, command: object, *, pass_fds: list[int], **options: Any) -> FakeWriter:
        if self.is_refused:
            raise OSError(errno.EAGAIN, "no more processes")
        self.writer = FakeWriter(os.dup(pass_fds[0]))
        return self.writer
