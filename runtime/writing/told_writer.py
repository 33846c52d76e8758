"""What the host's writer has been told, so that a new one can be told it again.

The memory belongs to the agent, so saves in it outlive the writer.  A new writer learns the
memory and the plan at once.  It learns the saves only when all workers are dead: a save at
which one writer has died may be the death of the next one, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.runtime.system.channel import FDS, Channel, Message


class ToldWriter:
    """The messages that hold: memory, plan, and the parts of the newest save in each buffer."""

    def __init__(self) -> None:
        self._memory: tuple[Message, tuple[int, ...]] | None = None
        self._plan: Message | None = None
        self._parts: dict[int, list[Message]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of a save, 0 before there is memory for one."""
        return 0 if self._memory is None else int(self._memory[0]["bytes"])

    @property
    def file_bytes(self) -> int:
        """Bytes of the largest file of a save; the writer tells when each is durable."""
        return 0 if self._memory is None else int(self._memory[0]["file_bytes"])

    @property
    def has_saves(self) -> bool:
        """Whether parts of a save have been copied."""
        return bool(self._parts)

    def memory(self, message: Message, fds: Sequence[int]) -> None:
        """Keep the newest memory; its descriptors belong to its owner.  Older saves are gone."""
        self._memory = message, tuple(fds)
        self._forget_parts()

    def plan(self, message: Message) -> None:
        """Keep the newest plan, and own its descriptor."""
        if self._plan is not None:
            _close(self._plan)
        self._plan = message

    def part(self, message: Message) -> bool:
        """Keep a part of a save, and own its descriptor; return whether the save is complete."""
        kept = self._parts.setdefault(message["buffer"], [])
        if kept and _save_of(kept[0]) != _save_of(message):
            for old in kept:
                _close(old)
            kept.clear()
        kept.append(message)
        parts: int = message["parts"]
        return len({found["part"] for found in kept}) == parts

    def repeat(self, channel: Channel) -> None:
        """Tell a new writer the memory and the plan."""
        if self._memory is not None:
            channel.post(*self._memory)
        if self._plan is not None:
            channel.post(*split(self._plan))

    def repeat_saves(self, channel: Channel) -> None:
        """Tell a new writer the saves in memory, the oldest first."""
        for kept in sorted(self._parts.values(), key=lambda kept: kept[0]["attempt"]):
            for message in kept:
                channel.post(*split(message))

    def close(self) -> None:
        """Close the descriptors that it owns."""
        self._forget_parts()
        if self._plan is not None:
            _close(self._plan)
        self._plan = None

    def _forget_parts(self) -> None:
        for kept in self._parts.values():
            for message in kept:
                _close(message)
        self._parts.clear()


def split(message: Message) -> tuple[Message, tuple[int, ...]]:
    """Return a received message as it is sent: without its descriptors, and these."""
    fields = {name: value for name, value in message.items() if name != FDS}
    return fields, tuple(message.get(FDS, ()))


def _save_of(message: Message) -> tuple[int, int]:
    return message["generation"], message["attempt"]


def _close(message: Message) -> None:
    for fd in message.get(FDS, ()):
        os.close(fd)
