"""Writers of hosts in threads, and a head that lets them do what follows of each copy."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from host_saves import LAUNCH, Workers

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.recovery.saves import (
    PartHeld,
    SaveAnswered,
    SaveCoordinator,
    SaveNews,
    SaveOrder,
    Settled,
    WriteShare,
)
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Record, Records
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.save_memory import Buffers
from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    OfWriter,
    PlanSaves,
    WriterAnswer,
    WriterWork,
)
from holdfast.runtime.saving.writer import HostWriter
from holdfast.runtime.system.channel import Channel, MessageKinds, pair, to_message

_ANSWERS: MessageKinds[OfWriter] = MessageKinds(OfWriter)


class RunningWriter:
    """Tells a writer what an agent tells it, and hears the answers."""

    def __init__(self, files: FileSystem | None = None, *, commits: bool = True) -> None:
        self.channel, theirs = pair()
        self.notices: list[str] = []
        self.being_written: list[int] = []
        """What the writer has told of its disk."""
        self._records: list[Record] = []
        self._answers: deque[WriterAnswer] = deque()
        self._thread = threading.Thread(target=_run, args=(theirs, files, commits), name="writer")
        self._thread.start()

    def use(self, given: Workers | Buffers) -> None:
        """Tell the memory of workers and their plan."""
        buffers = given.given if isinstance(given, Workers) else given
        self.channel.send(to_message(buffers.memory), buffers.fds)
        if buffers.plan is not None:
            self.plan(buffers.plan)

    def plan(self, message: PlanSaves) -> None:
        """Tell a plan."""
        self.channel.send(to_message(message))

    def do(self, work: WriterWork) -> WriterAnswer:
        """Let it do a piece of work, and return the answer."""
        self.channel.send(to_message(work))
        while not self._answers:
            message = self.channel.receive()
            assert message is not None, "the writer has ended"
            self._take(_ANSWERS.decode(message))
        return self._answers.popleft()

    def recorded(self, *events: str) -> list[Record]:
        """Return the records of some events that the writer has sent for the journal so far."""
        for message in self.channel.drain():
            self._take(_ANSWERS.decode(message))
        return [record for record in self._records if record["event"] in events]

    def close(self) -> None:
        """Close the connection, as an agent that ends, and wait for the writer's end."""
        self.channel.close()
        self._thread.join()

    def _take(self, message: OfWriter) -> None:
        match message:
            case Notice(text):
                self.notices.append(text)
            case Records():
                self._records += records_in(message)
            case DiskMoved(nbytes):
                self.being_written.append(nbytes)
            case _:
                self._answers.append(message)


class Head:
    """The saves of a launch; all that is to be done is done at once, by the writers of hosts."""

    def __init__(self, *writers: RunningWriter, launch: int = LAUNCH) -> None:
        self.writers = list(writers)
        """By the number of the host."""
        self.answers: list[SaveAnswered] = []
        self._saves = SaveCoordinator(launch)
        self._settled: list[int | None] = []

    def hear(self, news: SaveNews) -> None:
        """Hear what a host tells; the number of a host is its name."""
        if isinstance(news, PartHeld):
            news = replace(news, host=str(news.share))
        self._carry_out(self._saves.take(news))

    def begin_world(self, generation: int) -> None:
        """Hear that another world saves."""
        self._carry_out(self._saves.begin_world(generation))

    def lose(self, host: int) -> None:
        """Lose a host."""
        self._carry_out(self._saves.lose_host(str(host)))

    def settle(self) -> int | None:
        """Return the step that is durable when all workers have died."""
        self._carry_out(self._saves.settle())
        return self._settled.pop()

    def save(self, hosts: Workers | Sequence[Workers], step: int, attempt: int) -> SaveAnswered:
        """Save the state of a step; return the answer."""
        for workers in [hosts] if isinstance(hosts, Workers) else hosts:
            self.hear(workers.hold(workers.ticket(step, attempt)))
        return self.answers[-1]

    def _carry_out(self, orders: Iterable[SaveOrder]) -> None:
        left = deque(orders)
        while left:
            match order := left.popleft():
                case SaveAnswered():
                    self.answers.append(order)
                case Settled(step):
                    self._settled.append(step)
                case WriteShare():
                    answer = self.writers[int(order.host)].do(order)
                    left.extend(self._saves.take(answer))
                case _:
                    left.extend(self._saves.take(self.writers[0].do(order)))


class SavingHosts:
    """Hosts that save together, each with its writer; the first one commits."""

    def __init__(
        self,
        plan: SavePlan,
        count: int,
        files: Sequence[FileSystem | None] = (None,),
        *,
        has_care: bool = True,
    ) -> None:
        """Make ``count`` hosts; their writers use these ``files`` in turn.

        The first one looks after old steps, if it ``has_care``.
        """
        self.workers = [Workers(plan, share=share, hosts=count) for share in range(count)]
        self.writers = []
        for workers, found in zip(self.workers, itertools.cycle(files)):
            self.writers.append(RunningWriter(found, commits=has_care and workers.share == 0))
            self.writers[-1].use(workers)
        self.head = Head(*self.writers)

    def save(self, step: int, attempt: int) -> SaveAnswered:
        """Save the state of a step; return the answer."""
        return self.head.save(self.workers, step, attempt)

    def close(self) -> None:
        """End the writers, and give the memory back."""
        for writer in self.writers:
            writer.close()
        for workers in self.workers:
            workers.close()


@dataclass
class Disk:
    """Whether the disk is full."""

    is_full: bool = False


def _run(channel: Channel, files: FileSystem | None, commits: bool) -> None:  # noqa: FBT001
    try:
        HostWriter(channel, commits=commits, files=files).run()
    finally:
        channel.close()


def records_in(records: Records) -> list[Record]:
    """Return the records of a process as the journal has them, but for their stamps."""
    return [{"event": event.name, **event.fields} for event in records.events]
