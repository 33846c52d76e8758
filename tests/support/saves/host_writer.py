"""The host's writer in a thread, and the agent's end of its connection."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from host_saves import LAUNCH, Copied, Workers, whole

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Record, Records
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.save_messages import (
    DiskMoved,
    OfWriter,
    PlanSaves,
    SaveAnswered,
    SaveCopied,
    Settle,
    Settled,
)
from holdfast.runtime.saving.writer import HostWriter
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.codec import encode

_ANSWERS: MessageKinds[OfWriter] = MessageKinds(OfWriter)
PING, PONG = {"kind": "ping"}, {"kind": "pong"}


class Answering:
    """A writer's end of its connection, at which a ping is answered in its turn."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def receive(self) -> Message | None:
        while (message := self._channel.receive()) == PING:
            self._channel.send(PONG)
        return message


class RunningWriter:
    """Tells a writer what an agent tells it, and hears the answers."""

    def __init__(self, files: FileSystem | None = None) -> None:
        self.channel, theirs = pair()
        self.notices: list[str] = []
        self.being_written: list[int] = []
        """What the writer has told of its disk."""
        self._records: list[Record] = []
        self._answers: deque[OfWriter | Message] = deque()
        self._thread = threading.Thread(target=_run, args=(theirs, files), name="writer")
        self._thread.start()

    def use(self, workers: Workers) -> None:
        """Tell the memory of workers and their plan."""
        self.channel.send(to_message(workers.memory), workers.fds)
        self.plan(workers.plan)

    def plan(self, plan: SavePlan, generation: int = LAUNCH, **fields: bool) -> None:
        """Tell a plan, in the world of a generation."""
        self._send(PlanSaves(generation, **fields), encode(plan))

    def tell(self, *copied: Copied) -> None:
        """Tell that all parts of a save were copied."""
        self._send(*whole(copied))

    def save(self, workers: Workers, step: int, attempt: int, generation: int = 0) -> SaveAnswered:
        """Save the state of a step; return the answer."""
        self.tell(*workers.copy_all(workers.ticket(step, attempt, generation=generation)))
        return self.answer()

    def rest(self) -> None:
        """Wait until the writer has done all that it was told, and has given no answer."""
        self.channel.send(PING)
        assert self._next() == PONG

    def settle(self) -> int | None:
        """Return the step that is durable when all workers have died."""
        self.channel.send(to_message(Settle(is_urgent=False)))
        answer = self._next()
        assert isinstance(answer, Settled), f"{answer} was not asked for"
        return answer.step

    def answer(self) -> SaveAnswered:
        """Return the next answer to a save."""
        answer = self._next()
        assert isinstance(answer, SaveAnswered), f"{answer} was not asked for"
        return answer

    def _next(self) -> OfWriter | Message:
        while not self._answers:
            message = self.channel.receive()
            assert message is not None, "the writer has ended"
            self._take(message)
        return self._answers.popleft()

    def recorded(self, *events: str) -> list[Record]:
        """Return the records of some events that the writer has sent for the journal so far."""
        for message in self.channel.drain():
            self._take(message)
        return [record for record in self._records if record["event"] in events]

    def close(self) -> None:
        """Close the connection, as an agent that ends, and wait for the writer's end."""
        self.channel.close()
        self._thread.join()

    def _take(self, message: Message) -> None:
        match answer := _ANSWERS.decode(message) if message in _ANSWERS else message:
            case Notice(text):
                self.notices.append(text)
            case Records():
                self._records += records_in(answer)
            case DiskMoved(nbytes):
                self.being_written.append(nbytes)
            case _:
                self._answers.append(answer)

    def _send(self, message: PlanSaves | SaveCopied, content: bytes) -> None:
        fd = os.memfd_create("holdfast-test")
        try:
            os.write(fd, content)
            self.channel.send(to_message(message), [fd])
        finally:
            os.close(fd)


@dataclass
class Disk:
    """Whether the disk is full."""

    is_full: bool = False


def _run(channel: Channel, files: FileSystem | None) -> None:
    try:
        HostWriter(Answering(channel), files).run()
    finally:
        channel.close()


def records_in(records: Records) -> list[Record]:
    """Return the records of a process as the journal has them, but for their stamps."""
    return [{"event": event.name, **event.fields} for event in records.events]
