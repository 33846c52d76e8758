"""Agents that give workers memory for saves, and hear the messages of workers."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import journal_of, without_faults, worker_config
from host_saves import LAUNCH, RUN, plan_of, request_of, state_of
from local_communicator import LocalCommunicator

from holdfast.recovery.placement import WHOLE_SAVE, SavePart
from holdfast.recovery.saves import PartHeld, SaveNews
from holdfast.runtime.saving.agent_saver import AgentSaver, PendingSave
from holdfast.runtime.saving.save_memory import Buffers, SaveMemory
from holdfast.runtime.saving.save_messages import (
    AskHeld,
    AskMemory,
    OfWorker,
    PartCopied,
    PlanSaves,
)
from holdfast.runtime.system.channel import FDS, MessageKinds, to_message
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker.context import WorkerContext

_MESSAGES: MessageKinds[OfWorker] = MessageKinds(OfWorker)


class Agent:
    """The agent of one worker: it gives memory of its host, and hears the messages."""

    def __init__(self, host: Host) -> None:
        config = worker_config(run_dir=host.run_dir, run_id=RUN, generation=LAUNCH)
        self.page, self._journal = WorkerStatus.create(), journal_of(config)
        self.asked: list[AskMemory] = []
        self.plans: list[PlanSaves] = []
        self.copied: list[PartCopied] = []
        self.lacks = 0
        """So many of the next questions and messages meet a lack of descriptors."""
        self._host = host
        self.context = WorkerContext(
            config,
            LocalCommunicator(),
            self._journal,
            self.page,
            without_faults(config),
            self._hear,
            self._give,
        )
        self.way = AgentSaver(self.context)

    def save(
        self, step: int, attempt: int, part: SavePart = WHOLE_SAVE, digest: str = "00" * 16
    ) -> PendingSave:
        """Copy this worker's part of the state of a step."""
        state = state_of(step)
        save = self.way.begin(request_of(step, attempt, part), state)
        save.hand_over(state, digest)
        save.compared()
        return save

    def close(self) -> None:
        """End the worker."""
        self.way.close()
        for thread in self.way._thread._threads:
            thread.join()
        self.page.close()
        self._journal.close()

    def _give(self, question: dict[str, object]) -> dict[str, Any]:
        self._meet_the_lack()
        asked = _MESSAGES.decode(question)
        if isinstance(asked, AskHeld):
            held, fds = self._host.memory.held(asked.step)
            return {**to_message(held), FDS: [os.dup(fd) for fd in fds]}
        assert isinstance(asked, AskMemory)
        self.asked.append(asked)
        return {FDS: [os.dup(fd) for fd in self._host.buffers_for(asked).fds]}

    def _hear(self, line: dict[str, Any], fds: Sequence[int] = ()) -> None:
        assert not fds
        self._meet_the_lack()
        match message := _MESSAGES.decode(json.loads(json.dumps(line))):
            case PlanSaves():
                self.plans.append(message)
            case PartCopied():
                self.copied.append(message)
            case _:
                assert not isinstance(message, AskMemory)
        self._host.hear(message)

    def _meet_the_lack(self) -> None:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Host:
    """The memory that the agent of a host has made, and what it tells the head of saves."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.buffers = 2
        """How many buffers the host has room for."""
        self.plan = plan_of(run_dir)
        self.memory = SaveMemory(lambda: ())
        self.told: list[SaveNews] = []
        self.copied = 0
        """How many parts lie in memory."""
        self._agents: list[Agent] = []
        self._lock = threading.Lock()

    def agent(self) -> Agent:
        """Return the agent of one more worker."""
        self._agents.append(Agent(self))
        return self._agents[-1]

    def buffers_for(self, asked: AskMemory) -> Buffers:
        """Return the memory of a layout."""
        most = self.buffers * asked.nbytes
        with self._lock:  # each worker asks in a thread of its own
            question = AskMemory(asked.layout, asked.size, asked.nbytes, most)
            return self.memory.buffers(LAUNCH, question)[0]

    def hear(self, message: OfWorker) -> None:
        """Tell the head what it wants to know."""
        match message:
            case PartCopied():
                self.copied += 1
                held = self.memory.take_part(message)
                if held is not None:
                    self.told.append(held)
            case PlanSaves():
                self.memory.plan(LAUNCH, message)
            case AskMemory():
                pass
            case _:
                self.told.append(message)

    @property
    def held(self) -> list[PartHeld]:
        """The saves of which all parts were copied."""
        return [told for told in self.told if isinstance(told, PartHeld)]

    def view(self, attempt: int) -> bytes:
        """Return what is in the memory of a save."""
        fds = self.memory.kept[-1].fds
        fd = fds[attempt % len(fds)]
        return os.pread(fd, os.fstat(fd).st_size, 0)

    def close(self) -> None:
        """End the workers, and give the memory back."""
        for agent in self._agents:
            agent.close()
        self.memory.close()
