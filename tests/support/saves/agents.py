"""Agents that give workers memory for saves, and hear the messages of workers."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from configs import journal_of, without_faults, worker_config
from host_saves import LAUNCH, RUN, Copied, Workers, plan_of, request_of, state_of
from local_communicator import LocalCommunicator

from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.saving.agent_saver import AgentSaver, PendingSave
from holdfast.runtime.saving.save_messages import AskMemory, OfWorker, PartCopied
from holdfast.runtime.system.channel import FDS, MessageKinds
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker.context import WorkerContext

_MESSAGES: MessageKinds[OfWorker] = MessageKinds(OfWorker)


class Agent:
    """The agent of one worker: it gives memory of some buffers, and hears the messages."""

    def __init__(self, run_dir: Path, memory: Callable[[str], Workers]) -> None:
        config = worker_config(run_dir=run_dir, run_id=RUN, generation=LAUNCH)
        self.page, self._journal = WorkerStatus.create(), journal_of(config)
        self.asked: list[AskMemory] = []
        self.plans: list[bytes] = []
        """What came with each plan that it was told."""
        self.copied: list[Copied] = []
        self.lacks = 0
        """So many of the next questions and messages meet a lack of descriptors."""
        self._memory = memory
        context = WorkerContext(
            config,
            LocalCommunicator(),
            self._journal,
            self.page,
            without_faults(config),
            self._hear,
            self._give,
        )
        self.way = AgentSaver(context)

    def save(
        self, step: int, attempt: int, part: tuple[int, int] = (0, 1), digest: str = "00"
    ) -> PendingSave:
        request = request_of(step, attempt, *part)
        state: Tensors = state_of(step)
        save = self.way.begin(request, state)
        save.hand_over(state, digest)
        save.compared()
        return save

    def close(self) -> None:
        self.way.close()
        for thread in self.way._thread._threads:
            thread.join()
        self.page.close()
        self._journal.close()

    def _give(self, question: dict[str, object]) -> dict[str, Any]:
        self._meet_the_lack()
        asked = _MESSAGES.decode(question)
        assert isinstance(asked, AskMemory)
        self.asked.append(asked)
        memory = self._memory(asked.layout)
        assert (asked.size, asked.nbytes) == (memory.image_map.size, memory.plan.layout.nbytes)
        return {FDS: [os.dup(fd) for fd in memory.fds]}

    def _hear(self, line: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self._meet_the_lack()
        message = _MESSAGES.decode(json.loads(json.dumps(line)))
        content = None
        for fd in fds:
            content = os.pread(fd, os.fstat(fd).st_size, 0)
        if isinstance(message, PartCopied):
            self.copied.append(Copied(message, content))
        elif content is not None:
            self.plans.append(content)

    def _meet_the_lack(self) -> None:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Host:
    """The memory that the agent of a host has made, one for each layout."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.buffers = 2
        self.plan = plan_of(run_dir)
        self.memories: dict[str, Workers] = {}
        self._agents: list[Agent] = []
        self._lock = threading.Lock()

    def agent(self) -> Agent:
        self._agents.append(Agent(self.run_dir, self.memory))
        return self._agents[-1]

    def memory(self, layout: str) -> Workers:
        with self._lock:  # each worker asks in a thread of its own
            if layout not in self.memories:
                self.memories[layout] = Workers(self.plan, self.buffers)
            return self.memories[layout]

    @property
    def views(self) -> list[memoryview]:
        return self.memories[self.plan.layout_id].buffers

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        for memory in self.memories.values():
            memory.close()
