"""The memory that the workers of a host copy their saves into; the agent owns it.

So it outlives the workers, and the writer too.  There are two buffers: one is filled while the
other is written.  As long as saves succeed, all are copied into the same one, and the other one has
no pages.  Linux gives out memory that it does not have, and ends a process when it is used.
So the buffers are counted against the limits of the host before they are made.  There are fewer of
them, or none, where they do not fit.  A worker maps them (`HostBuffers`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.checkpoint.shares import HEADER_BYTES, digests_of, save_in
from holdfast.recovery.saves import PartHeld, SaveTicket
from holdfast.runtime.run.progress import memory as memory_words
from holdfast.runtime.saving.save_messages import (
    AskMemory,
    HeldSave,
    PartCopied,
    PlanSaves,
    UseMemory,
)
from holdfast.runtime.system.own_process import Usage, sealed_memory

BUFFERS = 2

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14

_AT_ONCE_BYTES = 32 * 2**20
"""This takes 13 ms and holds the interpreter's lock, which heartbeats need."""

_THEN = (
    "training waits while the first worker writes a checkpoint from its own memory",
    "one save waits for the end of the one before",
)
"""What follows from this many buffers."""


class Buffers:
    """The buffers of one layout in one launch, and the plan of the saves in them."""

    def __init__(self, memory: UseMemory) -> None:
        """Begin with no buffer."""
        self.memory = memory
        self.fds: tuple[int, ...] = ()
        self.lack = ""
        """Why there are not two."""
        self.plan: PlanSaves | None = None
        self.headers: list[mmap.mmap] = []

    def add(self, size: int) -> None:
        """Make one more buffer; raises ``OSError`` if no descriptor is left."""
        fd = sealed_memory("holdfast-save", size)
        try:
            self.headers.append(mmap.mmap(fd, HEADER_BYTES, prot=mmap.PROT_READ))
        except OSError:
            os.close(fd)
            raise
        self.fds += (fd,)

    def close(self) -> None:
        """Close the descriptors; processes that have mapped the memory keep it."""
        for fd, header in zip(self.fds, self.headers, strict=True):
            os.close(fd)
            header.close()


class SaveMemory:
    """Makes buffers when the first worker asks, and gives the same ones to the others.

    Those of the world before are kept: what is complete there may still have to be written.
    """

    def __init__(self, limits: Callable[[], Iterable[Usage]]) -> None:
        self._limits = limits
        self.kept: list[Buffers] = []
        """The newest last."""
        self._cursor: PartCopied | None = None
        """The newest part that came with a cursor."""
        self._held: SaveTicket | None = None
        """The newest save that was found whole."""

    def buffers(self, launch: int, question: AskMemory) -> tuple[Buffers, bool]:
        """Return the buffers for a worker's question, and whether they are new."""
        memory = UseMemory(launch, question.layout)
        for found in self.kept:
            if found.memory == memory:
                return found, False
        while len(self.kept) > 1:
            self.kept.pop(0).close()
        self.kept.append(self._make(memory, question))
        return self.kept[-1], True

    def plan(self, launch: int, message: PlanSaves) -> None:
        """Keep the plan of the saves in a memory, as the first world has told it."""
        memory = UseMemory(launch, message.layout)
        for found in self.kept:
            is_same = found.plan is not None and found.plan.plan == message.plan
            if found.memory == memory and not is_same:
                found.plan = message

    def take_part(self, copied: PartCopied) -> PartHeld | None:
        """Take note of a part; return what is to be told once all parts of its save are here.

        Rows may be there before the words of their workers, the plan and the cursor among them.
        """
        if copied.cursor is not None:
            self._cursor = copied
        ticket, cursor = copied.ticket, None
        if self._cursor is not None and self._cursor.ticket == ticket:
            cursor = self._cursor.cursor
        is_known = cursor is not None or copied.share != 0
        headers = (header for found in self.kept if found.plan for header in found.headers)
        states = (digests_of(memoryview(header), ticket.key) for header in headers)
        digests = next((found for found in states if found is not None), None)
        if digests is None or not is_known or ticket == self._held:
            return None
        self._held = ticket
        return PartHeld(ticket, copied.share, digests, copied.seconds, cursor)

    def held(self, step: int) -> tuple[HeldSave, tuple[int, ...]]:
        """Return the newest save of a step that is whole in memory, and the memory."""
        for found in reversed(self.kept):
            for fd, header in zip(found.fds, found.headers, strict=True):
                key = save_in(memoryview(header))
                if key is not None and key[0] == step and found.plan is not None:
                    plan = found.plan
                    return HeldSave(plan.plan, plan.share, plan.hosts), (fd,)
        return HeldSave(), ()

    def close(self) -> None:
        """Close all descriptors."""
        while self.kept:
            self.kept.pop().close()

    def _make(self, memory: UseMemory, question: AskMemory) -> Buffers:
        made = Buffers(memory)
        count, made.lack = self._count(question.nbytes, question.most)
        try:
            while len(made.fds) < count:
                made.add(question.size)
        except OSError as error:  # no descriptor is left
            then = _THEN[len(made.fds)]
            made.lack = f"memory for snapshots cannot be made: {error}; {then}"
        return made

    def _count(self, nbytes: int, most: int | None) -> tuple[int, str]:
        """Return how many buffers fit, and why there are not two."""
        tightest = min(self._limits(), key=lambda usage: usage.free, default=None)
        count, left = BUFFERS, ""
        if tightest is not None and BUFFERS * nbytes > tightest.free:
            count = 1 if nbytes <= tightest.free else 0
            left = f"{tightest.place} has {memory_words(tightest.free)} left"
        if most is not None and most < BUFFERS * nbytes:
            count = min(most // max(nbytes, 1), count)
            left = f"--snapshot-memory allows {memory_words(most)}"
        if not left:
            return count, ""
        return count, f"two snapshots of {memory_words(nbytes)} do not fit: {left}; {_THEN[count]}"


class HostBuffers:
    """Buffers of one size; every part of a save is copied into the same one."""

    def __init__(self, maps: Sequence[mmap.mmap]) -> None:
        self._maps = maps
        self._views = [memoryview(found) for found in maps]

    @staticmethod
    def of_agent(fds: Iterable[int]) -> HostBuffers:
        """Map the agent's buffers, and close their descriptors.

        Raises ``OSError`` if they cannot be mapped.
        """
        owned = list(fds)
        try:
            return HostBuffers([mmap.mmap(fd, 0) for fd in owned])
        finally:
            for fd in owned:
                os.close(fd)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, buffer: int) -> memoryview:
        return self._views[buffer]

    def place_of(self, attempt: int) -> int:
        """Return the number of the buffer that a save is copied into."""
        return attempt % len(self._views)

    def touch(self, attempt: int, spans: Iterable[tuple[int, int]]) -> None:
        """Map the pages of a save's places now, so that its copy meets no page faults.

        Raises ``OSError`` if the system has no memory for them.
        """
        if not self._maps:
            return
        found = self._maps[self.place_of(attempt)]
        for start, length in _joined(spans):
            for place, size in _in_pieces(start, length):
                _touch(found, place, size)

    def keep_only(self, attempt: int) -> None:
        """Return the pages of all buffers but that of a save to the system, where it takes them."""
        for number, found in enumerate(self._maps):
            if number != self.place_of(attempt):
                with contextlib.suppress(OSError):
                    for place, size in _in_pieces(0, len(found)):
                        found.madvise(mmap.MADV_REMOVE, place, size)

    def close(self) -> None:
        """Unmap; memory of the agent stays."""
        for view in self._views:
            view.release()
        for found in self._maps:
            found.close()


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pages of ascending spans as few stretches: start and length."""
    joined: list[tuple[int, int]] = []
    for start, length in sorted(spans):
        low = start // mmap.PAGESIZE * mmap.PAGESIZE
        high = -(-(start + length) // mmap.PAGESIZE) * mmap.PAGESIZE
        if joined and low <= sum(joined[-1]):
            first, before = joined[-1]
            joined[-1] = (first, max(before, high - first))
        else:
            joined.append((low, high - low))
    return joined


def _in_pieces(start: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield pieces of memory that one call may take: start and length."""
    for place in range(start, start + length, _AT_ONCE_BYTES):
        yield place, min(_AT_ONCE_BYTES, start + length - place)


def _touch(found: mmap.mmap, start: int, length: int) -> None:
    length = min(length, len(found) - start)
    try:
        found.madvise(_POPULATE_WRITE, start, length)
    except OSError as error:
        if error.errno != 22:  # EINVAL: an older kernel
            raise
        for place in range(start, start + length, mmap.PAGESIZE):
            found[place] = found[place]
