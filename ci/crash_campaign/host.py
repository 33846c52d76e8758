"""The hosts of a job and their head, as far as a host's writer knows them.

The memory is made by this process and inherited by a victim.  So it outlives the victim, as
the agent's memory outlives a writer.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from job import RUN_ID, WRITERS, state_of

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.shares import digests_of, note_part
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.saves import (
    PartHeld,
    SaveAnswered,
    SaveCoordinator,
    SaveNews,
    SaveOrder,
    SaveTicket,
    Settled,
    WorkFailed,
    WriteShare,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.plan import SavePlan, SaveTerms
from holdfast.runtime.saving.save_messages import (
    PlanSaves,
    ToWriter,
    UseMemory,
    WriterAnswer,
    WriterWork,
)
from holdfast.runtime.saving.writer import HostWriter
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.own_process import sealed_memory

_ANSWERS: MessageKinds[WriterAnswer] = MessageKinds(WriterAnswer)
PARTS, BUFFERS = 2, 2
EVERYONE = tuple(range(PARTS))
_DONE_WITHIN_S = 60.0
LAUNCH = 5
"""The generation of the launch that saves; what was there before is of older ones."""
OTHER = "b"
"""The host that is not the head's, if there are two."""

Answer: TypeAlias = Callable[[WriteShare], SaveNews]


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


class HostMemory:
    """The buffers of all workers of host number ``host``, and the workers' copies into them."""

    def __init__(self, host: int = 0, hosts: int = 1) -> None:
        self.host, self.hosts = host, hosts
        self._plan = plan_of(Path("/"))
        self.layout = self._plan.layout_id(host, hosts)
        self.map = self._plan.image_map(host, hosts)
        self.descriptors = [sealed_memory("crash-save", self.map.size) for _ in range(BUFFERS)]
        self._views = [memoryview(mmap.mmap(fd, 0)) for fd in self.descriptors]
        self._shares = [
            ShareImage(self.map, share_of(self.map, part, PARTS), RUN_ID) for part in EVERYONE
        ]

    def ticket(self, step: int, attempt: int) -> SaveTicket:
        """Return the ticket of a save; successive attempts take turns with the buffers."""
        return SaveTicket(LAUNCH, LAUNCH, step, attempt, self.hosts)

    def view(self, ticket: SaveTicket) -> memoryview:
        """Return the buffer that a save is copied into."""
        return self._views[ticket.attempt % BUFFERS]

    def copy(self, seed: int, ticket: SaveTicket, part: int, digest: str = "") -> None:
        """Copy one worker's part of the state of the ticket's step."""
        self.begin_copy(seed, ticket, part)
        state, memory = state_of(seed, ticket.step), self.view(ticket)
        self._shares[part].describe(memory, state, self._plan.header(ticket))
        note_part(memory, part, PARTS, ticket.key, digest or f"{ticket.step:032x}")

    def begin_copy(self, seed: int, ticket: SaveTicket, part: int) -> None:
        """Copy the bytes of a part, as a worker that dies before it describes them."""
        state, header = state_of(seed, ticket.step), self._plan.header(ticket)
        self._shares[part].copy(self.view(ticket), state, header)

    def flip_a_bit(self, ticket: SaveTicket) -> None:
        """Change a bit of a tensor in the image of the first shard."""
        self.view(ticket)[self.map.bases[0] + 3000] ^= 16


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
        self.plan, self.memory, self._seed = plan, memory, seed
        self.channel, theirs = pair()
        self._theirs, self._sent = _WriterEnd(theirs), 0
        self.writer = HostWriter(self._theirs, commits=not memory.host)  # type: ignore[arg-type]

    def serve(self) -> None:
        """Be the writer until the connection is closed."""
        try:
            self.writer.run()
        finally:
            self._theirs.close()

    def serve_while(self, lead: Callable[[], object]) -> None:
        """Be the writer while a thread does what an agent does."""
        thread = threading.Thread(target=self._lead, args=(lead,), daemon=True)
        thread.start()
        self.serve()
        thread.join()

    def _lead(self, lead: Callable[[], object]) -> None:
        try:
            self._send(UseMemory(LAUNCH, self.memory.layout), *self.memory.descriptors)
            plan, memory = encode(self.plan).decode(), self.memory
            self._send(PlanSaves(LAUNCH, memory.layout, plan, memory.host, memory.hosts))
            self.rest()  # it has begun to care for old steps
            lead()
            self.rest()
        finally:
            self.channel.close()

    def rest(self) -> None:
        """Wait until the writer is idle, and its care of old steps too."""
        self._theirs.wait_for(self._sent)
        committer = self.writer._committer  # its care has no answer that one could wait for
        if committer is not None:
            committer._maintenance._thread.submit(lambda: None).result()

    def copy(self, ticket: SaveTicket, *parts: int, digest: str = "") -> None:
        """Copy parts of a save, all if none is given."""
        for part in parts or EVERYONE:
            self.memory.copy(self._seed, ticket, part, digest)

    def work(self, work: WriterWork) -> WriterAnswer:
        """Let the writer do something; return its answer."""
        self._send(work)
        while (line := self.channel.receive()) is not None:
            if line in _ANSWERS:
                return _ANSWERS.decode(line)
        raise ConnectionError("the writer has ended")

    def _send(self, message: ToWriter, *fds: int) -> None:
        self._sent += 1
        self.channel.send(to_message(message), fds)


class Head:
    """The head of a job: it leads the saves, and its orders go to the writer of its host.

    ``answer`` is the other host, if there is one.
    """

    def __init__(self, agent: Agent, answer: Answer | None = None) -> None:
        self._agent, self._answer = agent, answer
        self._saves = SaveCoordinator(LAUNCH)

    def save(self, ticket: SaveTicket) -> SaveAnswered:
        """Let a save be written that is in memory, and committed; return the answer."""
        return self._answered(self._hold(ticket))

    def fail(self, ticket: SaveTicket) -> SaveAnswered:
        """Let all writers die at once that are told to write a save, and others follow them."""
        writes = [order for order in self._hold(ticket) if isinstance(order, WriteShare)]
        failures = [WorkFailed(ticket, order.share, "its writer has died") for order in writes]
        return self._answered(order for failed in failures for order in self._saves.take(failed))

    def settle(self) -> int | None:
        """Let all workers die, and the other host; return the step that is durable then."""
        orders = [*self._saves.lose_host(OTHER), *self._saves.settle()]
        (step,) = [told.step for told in self._lead(orders) if isinstance(told, Settled)]
        return step

    def _hold(self, ticket: SaveTicket) -> list[SaveOrder]:
        """Tell what the memory says of a save, as the agents do."""
        digests = digests_of(self._agent.memory.view(ticket), ticket.key)
        assert digests is not None, "parts of it lack"
        orders = self._saves.take(PartHeld(ticket, 0, digests, 0.0, "{}"))
        if ticket.hosts > 1:
            orders += self._saves.take(PartHeld(ticket, 1, digests, 0.0, host=OTHER))
        return orders

    def _answered(self, orders: Iterable[SaveOrder]) -> SaveAnswered:
        (answer,) = [told for told in self._lead(orders) if isinstance(told, SaveAnswered)]
        return answer

    def _lead(self, orders: Iterable[SaveOrder]) -> list[SaveAnswered | Settled]:
        """Carry out orders, and those that follow; return what is told to workers."""
        told: list[SaveAnswered | Settled] = []
        queue = deque(orders)
        while queue:
            order = queue.popleft()
            if isinstance(order, SaveAnswered | Settled):
                told.append(order)
            elif isinstance(order, WriteShare) and order.host == OTHER:
                assert self._answer is not None
                queue += self._saves.take(self._answer(order))
            else:
                queue += self._saves.take(self._agent.work(order))
        return told


def settled_by_another(plan: SavePlan, memory: HostMemory, seed: int, ticket: SaveTicket) -> int:
    """Return the step that a new writer makes durable when the one before has died."""
    agent, found = Agent(plan, memory, seed), list[int]()

    def lead() -> None:
        head = Head(agent)
        head.fail(ticket)
        found.append(head.settle() or 0)

    agent.serve_while(lead)
    return found[0]
