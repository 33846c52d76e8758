"""What workers tell of a save does not grow with the tensors: a busy writer is never given up."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from copied_saves import CopiedSaves

from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.reactor import Reactor

pytestmark = pytest.mark.process

WORKERS = 128
MIB = 2**20


class ManySaves(CopiedSaves):
    """Saves of a state whose names and shapes alone are half a MiB."""

    state: ClassVar[Tensors] = {
        f"{'layer-' * 165}{number:03d}": np.full(3, number) for number in range(600)
    }


class Agent:
    """An agent that hears answers."""

    def __init__(self) -> None:
        self.answers: list[Message] = []

    def on_written(self, answer: Message) -> None:
        self.answers.append(answer)

    def on_writer_notice(self, notice: Message) -> None: ...


def test_parts_of_many_workers_wait_for_a_writer_that_is_busy(tmp_path: Path) -> None:
    """Each part with the layout in it would make 70 MiB, and 64 MiB are the end of a writer."""
    agent, reactor = Agent(), Reactor()
    assert sum(map(len, ManySaves.state)) * WORKERS > 64 * MIB
    link = WriterLink(reactor, agent)
    with (
        contextlib.closing(reactor),
        contextlib.closing(link),
        contextlib.closing(ManySaves(tmp_path, parts=WORKERS)) as saves,
    ):
        link.start()
        link.use(saves.memory, saves.fds)
        link.plan(saves.plan_message)
        messages = saves.save(1)
        writer = link.pid
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        for message in messages:
            link.copied(message)

        assert agent.answers == []
        assert link.pid == writer
        os.kill(writer, signal.SIGCONT)
        while not agent.answers:
            reactor.run_once(10.0)

    assert [(answer["kind"], answer.get("reason")) for answer in agent.answers] == [("saved", None)]
    assert CheckpointStore(tmp_path).steps() == (10,)
