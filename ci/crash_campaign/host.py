"""The workers of a host and their agent, as far as the host's writer knows them.

The memory is made by this process and inherited by a victim.  So it outlives the victim, as
the agent's memory outlives a writer.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Any

from job import RUN_ID, WRITERS, state_of

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.plan import SavePlan, SaveTerms
from holdfast.runtime.saving.save_messages import (
    PlanSaves,
    SaveAnswered,
    SaveCopied,
    SaveTicket,
    Settle,
    Settled,
    ToWriter,
    UseMemory,
)
from holdfast.runtime.saving.writer import HostWriter
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.own_process import sealed_memory

_ANSWERS: MessageKinds[Any] = MessageKinds(SaveAnswered | Settled)
PARTS, BUFFERS = 2, 2
_DONE_WITHIN_S = 60.0
LAUNCH = 5
"""The generation of the launch that saves; what was there before is of older ones."""


def plan_of(run_dir: Path, *, newest: int = 2, token: str = "", **options: Any) -> SavePlan:
    """Return the plan of the saves of ``state_of``."""
    layout = ShardLayout(specs_of(state_of(0, 0)), WRITERS)
    first = WorkerId(0)
    config = WorkerConfig(
        JobOptions(Path("train.py"), run_dir, **options),
        worker=first,
        generation=LAUNCH,
        workers=(first,),
        record=RunRecord(RUN_ID, FORMAT, 0.0, microbatches=1, seed=0, threads=1),
        lease_token=token,
    )
    return SavePlan(config, layout, SaveTerms(Retention(newest)))


def begin_run(run_dir: Path) -> None:
    """Make a directory that has steps the one of a run: no other one may be changed."""
    record = RunRecord(RUN_ID, FORMAT, 0.0, microbatches=1, seed=0, threads=1)
    RunDirectory(run_dir).create_record(record)


def ticket_of(plan: SavePlan, step: int, attempt: int) -> SaveTicket:
    """Return the ticket of a save; successive attempts take turns with the buffers."""
    buffer, layout = attempt % BUFFERS, plan.layout_id
    return SaveTicket(LAUNCH, LAUNCH, step, attempt, PARTS, 0.0, buffer, layout)


class HostMemory:
    """The buffers of all workers of a host, and the workers' copies into them."""

    def __init__(self) -> None:
        self._plan = plan_of(Path("/"))
        self.map = self._plan.image_map()
        self.descriptors = [sealed_memory("crash-save", self.map.size) for _ in range(BUFFERS)]
        self._views = [memoryview(mmap.mmap(fd, 0)) for fd in self.descriptors]
        self._shares = [
            ShareImage(self.map, share_of(self.map, part, PARTS), RUN_ID) for part in range(PARTS)
        ]

    def copy(self, seed: int, ticket: SaveTicket, part: int) -> None:
        """Copy one worker's part of the state of the ticket's step."""
        state, header = state_of(seed, ticket.step), self._plan.header(ticket)
        memory = self._views[ticket.buffer]
        self._shares[part].copy(memory, state, header)
        self._shares[part].describe(memory, state, header)

    def flip_a_bit(self, ticket: SaveTicket) -> None:
        """Change a bit of a tensor in the image of the first shard."""
        self._views[ticket.buffer][self.map.bases[0] + 3000] ^= 16


class _WriterEnd:
    """The writer's end of the connection, which tells when the writer has come to a message."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._changed, self._asked = channel, threading.Condition(), 0
        self.send, self.close = channel.send, channel.close

    def receive(self) -> Message | None:
        """Return the next message; those before it were done."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
        return self._channel.receive()

    def wait_for(self, messages: int) -> None:
        """Return once so many messages were done."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._asked > messages, _DONE_WITHIN_S):
                raise ConnectionError("the writer has ended")


class Agent:
    """The agent's end of a writer that runs in this process."""

    def __init__(self, plan: SavePlan, memory: HostMemory, seed: int) -> None:
        self.plan, self._memory, self._seed = plan, memory, seed
        self.channel, theirs = pair()
        self._theirs, self._sent = _WriterEnd(theirs), 0
        self.writer = HostWriter(self._theirs)  # type: ignore[arg-type]

    def serve(self) -> None:
        """Be the writer until the connection is closed."""
        try:
            self.writer.run()
        finally:
            self._theirs.close()

    def introduce(self) -> None:
        """Tell memory and plan, and wait until the writer has begun to care for old steps."""
        self._send(UseMemory(LAUNCH, self.plan.layout_id), *self._memory.descriptors)
        self._send(PlanSaves(LAUNCH), content=encode(self.plan))
        self.rest()

    def rest(self) -> None:
        """Wait until the writer is idle, and its care of old steps too."""
        self._theirs.wait_for(self._sent)
        committer = self.writer._committer  # its care has no answer that one could wait for
        if committer is not None:
            committer._maintenance._thread.submit(lambda: None).result()

    def copy(self, ticket: SaveTicket, *parts: int) -> None:
        """Copy parts of a save."""
        for part in parts:
            self._memory.copy(self._seed, ticket, part)

    def save(self, ticket: SaveTicket, **fields: Any) -> None:
        """Copy all parts of a save, and tell that; ``fields`` are those of an odd message."""
        self.copy(ticket, *range(PARTS))
        self.repeat(ticket, **fields)

    def flip_a_bit(self, ticket: SaveTicket) -> None:
        """Let the memory of a save change after it was copied."""
        self._memory.flip_a_bit(ticket)

    def repeat(self, ticket: SaveTicket, *others: str, **fields: Any) -> None:
        """Tell that all parts of a save were copied before, with other digests if any are given."""
        digests = frozenset((f"{ticket.step:04x}", *others))
        self._send(SaveCopied(ticket, digests, **fields), content=b"{}")

    def settle(self) -> Any:
        """Let the writer settle; return the step that is durable."""
        self._send(Settle(is_urgent=False))
        return self.answer().step

    def answer(self) -> Any:
        """Return the next ``SaveAnswered`` or ``Settled``."""
        while (line := self.channel.receive()) is not None:
            if line in _ANSWERS:
                return _ANSWERS.decode(line)
        raise ConnectionError("the writer has ended")

    def _send(self, message: ToWriter, *fds: int, content: bytes | None = None) -> None:
        self._sent += 1
        if content is not None:
            fds = (os.memfd_create("crash-content"),)
            os.write(*fds, content)
        self.channel.send(to_message(message), fds)
        if content is not None:
            os.close(*fds)


def settled_by_another(plan: SavePlan, memory: HostMemory, seed: int, *tickets: SaveTicket) -> int:
    """Return the step that a new writer has durable, which is told the saves of a dead one."""
    agent = Agent(plan, memory, seed)
    thread = threading.Thread(target=agent.serve, name="writer")
    thread.start()
    try:
        agent.introduce()
        for ticket in tickets:
            agent.repeat(ticket, was_durable=False)
        return int(agent.settle() or 0)
    finally:
        agent.channel.close()
        thread.join()
