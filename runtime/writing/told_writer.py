"""What the host's writer has been told, so that a new one can be told it again.

The memory belongs to the agent, so saves in it outlive the writer.  A new writer learns the
memory, the plan, and the parts of a save that more parts will follow.  It learns complete
saves only when all workers are dead: a save at which one writer has died may be the death
of the next one, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.runtime.system.channel import FDS, Channel, Message

_Age = tuple[int, int]


@dataclass(slots=True)
class ToldSave:
    """The parts of one save that have been copied."""

    age: _Age
    messages: list[Message] = field(default_factory=list)
    is_lost: bool = False
    """Whether no writer that lives was told it."""
    is_durable: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all workers have copied their parts."""
        parts: int = self.messages[0]["parts"]
        return len({message["part"] for message in self.messages}) == parts

    def repeat(self, channel: Channel, **fields: object) -> None:
        """Tell a new writer all parts."""
        self.is_lost = False
        for message in self.messages:
            told, fds = split(message)
            channel.post({**told, **fields}, fds)


class ToldWriter:
    """The messages that hold: memory, plan, and the parts of the newest save in each buffer."""

    def __init__(self) -> None:
        self._memory: tuple[Message, tuple[int, ...]] | None = None
        self._plan: Message | None = None
        self._saves: dict[int, ToldSave] = {}
        self._unused: list[int] = []

    @property
    def has_lost_saves(self) -> bool:
        """Whether there are complete saves that only lost writers were told."""
        return any(save.is_lost and save.is_complete for save in self._saves.values())

    def memory(self, message: Message, fds: Sequence[int]) -> None:
        """Keep the newest memory; its descriptors belong to its owner.  Older saves are gone."""
        self._memory = message, tuple(fds)
        self._forget_saves()

    def plan(self, message: Message) -> None:
        """Keep the newest plan, and own its descriptor."""
        self._forget_plan()
        self._plan = message

    def part(self, message: Message) -> ToldSave | None:
        """Keep a part and own its descriptor; return its save, None if that has no use any more.

        A save has no use once a later one has begun, or another memory was given out.
        """
        age = _age(message)
        newest = max((save.age for save in self._saves.values()), default=age)
        if age < newest or not self._is_of_memory(message):
            self._forget(message)
            return None
        save = self._saves.get(message["buffer"])
        if save is None or save.age != age:
            if save is not None:
                self._forget_save(save)
            save = self._saves[message["buffer"]] = ToldSave(age)
        save.messages.append(message)
        return save

    def saved(self, answer: Message) -> None:
        """Take note that a save is durable; older ones have no use any more."""
        for buffer, save in list(self._saves.items()):
            attempt = save.messages[0]["attempt"]
            if save.messages[0]["launch"] != answer["launch"] or attempt > answer["attempt"]:
                continue
            save.is_durable = attempt == answer["attempt"]
            if not save.is_durable:
                self._forget_save(self._saves.pop(buffer))

    def lost(self) -> None:
        """Take note that the writer that was told all this is gone."""
        for save in self._saves.values():
            save.is_lost = True

    def repeat(self, channel: Channel) -> None:
        """Tell a new writer the memory, the plan, and the newest save if parts of it lack."""
        if self._memory is not None:
            channel.post(*self._memory)
        if self._plan is not None:
            channel.post(*split(self._plan))
        newest = max(self._saves.values(), key=lambda save: save.age, default=None)
        if newest is not None and not newest.is_complete:
            newest.repeat(channel)

    def repeat_saves(self, channel: Channel) -> None:
        """Tell a new writer the complete saves that only lost ones were told, the oldest first.

        All of them were answered.
        """
        for save in sorted(self._saves.values(), key=lambda save: save.age):
            if save.is_lost and save.is_complete:
                answer = "saved" if save.is_durable else "unsaved"
                save.repeat(channel, answered=answer)

    def close_unused(self, channel: Channel | None) -> None:
        """Close descriptors that no message needs; they must stay open until one has left."""
        if channel is None or not channel.wants_write:
            while self._unused:
                os.close(self._unused.pop())

    def close(self) -> None:
        """Close the descriptors that it owns; nothing waits to leave any more."""
        self._forget_saves()
        self._forget_plan()
        self.close_unused(None)

    def _is_of_memory(self, message: Message) -> bool:
        if self._memory is None:
            return False
        names = "launch", "layout"
        return all(self._memory[0][name] == message[name] for name in names)

    def _forget_plan(self) -> None:
        if self._plan is not None:
            self._forget(self._plan)
        self._plan = None

    def _forget_saves(self) -> None:
        for save in self._saves.values():
            self._forget_save(save)
        self._saves.clear()

    def _forget_save(self, save: ToldSave) -> None:
        for message in save.messages:
            self._forget(message)

    def _forget(self, message: Message) -> None:
        self._unused.extend(message.get(FDS, ()))


def split(message: Message) -> tuple[Message, tuple[int, ...]]:
    """Return a received message as it is sent: without its descriptors, and these."""
    fields = {name: value for name, value in message.items() if name != FDS}
    return fields, tuple(message.get(FDS, ()))


def _age(message: Message) -> _Age:
    return message["generation"], message["attempt"]
