"""A worker's part of a save: a copy in memory of the agent, from which the host's writer commits.

Each worker copies its share, takes the digests beside its next step, and says that it has
done so.  The outcome stands in its status.  Where a host has no memory for a snapshot, its first
worker writes the host's shards from its own state.  Training waits then, and nothing of it
is written before all workers have compared their states.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.checkpoint.errors import CheckpointError, StorageFailed
from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import ImageMap, share_of
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.shares import note_part, written_by
from holdfast.checkpoint.tensor import ShardLayout, Tensors
from holdfast.recovery.placement import SavePart
from holdfast.recovery.saves import PartHeld, ShareWritten, WorkFailed
from holdfast.runtime.saving.committer import MOST_THREADS
from holdfast.runtime.saving.plan import SavePlan, SaveRequest
from holdfast.runtime.saving.save_memory import HostBuffers
from holdfast.runtime.saving.save_messages import (
    AskHeld,
    AskMemory,
    HeldSave,
    PartCopied,
    PlanSaves,
)
from holdfast.runtime.system.channel import FDS, MessageKinds, to_message
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.system.witnessed_time import Bound
from holdfast.runtime.worker.context import WorkerContext

FREE_WITHIN_S = 60.0
"""So long a save waits for its memory; a disk that is slower costs it, and the next one waits."""

_LOOK_S = 0.001
_HELD: MessageKinds[HeldSave] = MessageKinds(HeldSave)

_World: TypeAlias = tuple[SavePart, int, int]
"""This worker's part, the generation, and the number of its first save."""


class SnapshotNotWritten(CheckpointError):
    """The save has failed, and the head tells the reason."""


class PendingSave:
    """One worker's part of a save, after its copy.

    By itself it is that of a worker that copies nothing, because another one of its host writes its
    own state, or because it cannot (`fail`).
    """

    def __init__(self, context: WorkerContext, request: SaveRequest) -> None:
        self._context = context
        self._request = request
        self._failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Let the head know that this worker cannot do its part, so that all workers hear of it."""
        self._failure, reason = error, reason_of(error)
        failed = WorkFailed(self._request.ticket, self._request.part.host, reason)
        with contextlib.suppress(OSError, MemoryError):  # else nothing is to spare for any words
            self._context.tell_agent(to_message(failed))
            self._failure = SnapshotNotWritten(reason)

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Take the digests of the part; another thread calls this once.

        ``state`` is still the state that was copied.
        """

    def compared(self) -> None:
        """Go on: all workers have the same state; ``state`` is still as it was."""

    @property
    def is_done(self) -> bool:
        """Whether the save is durable, or has failed."""
        attempt = self._request.ticket.attempt
        return self._failure is not None or self._context.page.is_answered(attempt)

    @property
    def failure(self) -> BaseException | None:
        """The error if the part was not told, or could not be committed, else None."""
        if self._failure is not None:
            return self._failure
        if self._context.page.failed_save != self._request.ticket.attempt:
            return None
        return SnapshotNotWritten("it could not be committed; the journal says why")

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the answer."""
        bound = Bound(timeout_s)
        while not self.is_done and not bound.has_passed:
            time.sleep(_LOOK_S)


def images_in_memory(context: WorkerContext, manifest: Manifest) -> Mapping[int, memoryview]:
    """Return the files of a step's shards that this host still has in memory, by their numbers.

    They may be written over at any time, so their digests decide.
    """
    answer = context.ask_agent(to_message(AskHeld(manifest.step)))
    fds = answer.pop(FDS, ())
    if not fds:
        return {}
    memory = HostBuffers.of_agent(fds)[0]
    held = _HELD.decode(answer)
    image_map = decode(SavePlan, held.plan.encode()).image_map(held.share, held.hosts)
    if image_map.layout != ShardLayout(manifest.specs, manifest.writers):
        return {}
    sizes = {shard: manifest.shards[shard].size for shard in image_map.pieces}
    return {shard: image_map.image(memory, shard, size) for shard, size in sizes.items()}


class AgentSaver:
    """Copies this worker's shares into the memory of its agent."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        # Of its own: laying out may take seconds, and no digest should wait for it.
        self._thread = DaemonExecutor(1, "holdfast-memory")
        self._desk: Future[_PreparedSave] | None = None
        self._prepared: tuple[SavePlan, _World] | None = None
        self._copied: dict[int, int] = {}
        """The newest attempt in each buffer that has this worker's part and its word.

        Nobody reads the memory of any other save.
        """

    def prepare(self, plan: SavePlan, part: SavePart, *, generation: int, attempt: int = 1) -> None:
        """Begin to lay out this worker's share and to take its memory, in the background.

        ``generation`` is that of the world, and ``attempt`` that of its first save.
        """
        self._prepared = plan, (part, generation, attempt)
        self._desk = self._thread.submit(self._lay_out, *self._prepared, self._desk)

    def begin(self, request: SaveRequest, state: Tensors) -> PendingSave:
        """Copy this worker's share of ``state``; ``hand_over`` and ``compared`` must follow.

        Raises ``OSError`` or ``MemoryError`` if this worker cannot map its memory, and
        ``CheckpointError`` if the writer still reads it; the next save tries again.
        """
        desk = self._laid_out()
        if not len(desk.buffers):
            if request.part.part == 0:
                return _StateSave(self._context, desk.plan, request)
            return PendingSave(self._context, request)
        buffer = desk.buffers.place_of(request.ticket.attempt)
        self._wait_until_free(buffer)
        desk.share.copy(desk.buffers[buffer], state, desk.plan.header(request.ticket))
        return _AgentSave(self._context, desk, request, self._copied)

    def keep_only(self, attempt: int) -> None:
        """Return the pages of all saves but this one: it is durable, and later than all others.

        The next one is copied into the same memory.  Only one after a failure needs the other.
        """
        if self._desk is not None and self._desk.done() and self._desk.exception() is None:
            self._desk.result().buffers.keep_only(attempt)

    def close(self) -> None:
        """Give the memory back."""
        if self._desk is not None:
            self._thread.submit(_give_back, self._desk)
        self._thread.shutdown()

    def _laid_out(self) -> _PreparedSave:
        assert self._desk is not None  # it was prepared
        assert self._prepared is not None
        try:
            return self._desk.result()
        except (OSError, MemoryError):
            self._desk = self._thread.submit(self._lay_out, *self._prepared, self._desk)
            raise

    def _lay_out(
        self, plan: SavePlan, world: _World, before: Future[_PreparedSave] | None
    ) -> _PreparedSave:
        mine, generation, attempt = world
        image_map = plan.image_map(mine.host, mine.hosts)
        shares = share_of(image_map, mine.part, mine.parts)
        share = ShareImage(image_map, shares, plan.config.record.run_id)
        layout = plan.layout_id(mine.host, mine.hosts)
        desk = None if before is None or before.exception() else before.result()
        if desk is not None and desk.layout == layout:
            buffers = desk.buffers
        else:
            buffers = self._ask_for_memory(image_map, layout)
            if desk is not None:
                desk.buffers.close()
        buffers.touch(attempt, share.spans())
        if mine.part == 0:
            text = encode(plan).decode()
            planned = PlanSaves(generation, layout, text, mine.host, mine.hosts)
            self._context.tell_agent(to_message(planned))
        return _PreparedSave(plan, layout, buffers, share)

    def _ask_for_memory(self, image_map: ImageMap, layout: str) -> HostBuffers:
        most = self._context.config.options.snapshot_memory
        question = AskMemory(layout, image_map.size, image_map.nbytes, most)
        return HostBuffers.of_agent(self._context.ask_agent(to_message(question)).get(FDS, ()))

    def _wait_until_free(self, buffer: int) -> None:
        """Wait until no process reads the save any more that is in this buffer.

        Every complete save is answered, and an incomplete one when a later one or another world
        begins.  Raises ``CheckpointError`` if that takes too long.
        """
        before = self._copied.get(buffer, 0)
        bound = Bound(FREE_WITHIN_S)
        while not self._context.page.is_answered(before):
            if bound.has_passed:
                raise CheckpointError(
                    f"its memory is still being written to the disk after {FREE_WITHIN_S:.0f} s, "
                    "for an earlier save; look at the disk of the run directory"
                )
            time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class _PreparedSave:
    """The memory of a layout, and this worker's share of it in the present world."""

    plan: SavePlan
    layout: str
    buffers: HostBuffers
    share: ShareImage


def _give_back(desk: Future[_PreparedSave]) -> None:
    if desk.exception() is None:
        desk.result().buffers.close()


class _AgentSave(PendingSave):
    """A worker's part of a save that the host's writer writes."""

    def __init__(
        self,
        context: WorkerContext,
        desk: _PreparedSave,
        request: SaveRequest,
        copied: dict[int, int],
    ) -> None:
        super().__init__(context, request)
        self._desk = desk
        self._copied = copied

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Write the records of the share behind the images, and say that it was copied."""
        desk, request, mine = self._desk, self._request, self._request.part
        ticket, buffer = request.ticket, desk.buffers.place_of(request.ticket.attempt)
        memory = desk.buffers[buffer]
        try:
            desk.share.describe(memory, state, desk.plan.header(ticket))
        except (OSError, MemoryError) as error:  # nothing to spare for digests
            self.fail(error)
            return
        note_part(memory, mine.part, mine.parts, ticket.key, state_digest)
        seconds = time.monotonic() - request.began
        copied = PartCopied(ticket, mine.host, seconds, request.cursor_text)
        try:
            self._context.tell_agent(to_message(copied))
        except (OSError, MemoryError) as error:
            self._failure = error  # from here on others may believe that it is there
        else:
            self._copied[buffer] = ticket.attempt


class _StateSave(PendingSave):
    """The share of a host, which is written from this worker's state while training waits."""

    def __init__(self, context: WorkerContext, plan: SavePlan, request: SaveRequest) -> None:
        super().__init__(context, request)
        self._plan = plan
        self._taken: tuple[Tensors, str] | None = None

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Remember the state."""
        self._taken = state, state_digest

    def compared(self) -> None:
        """Write the shards of the host; the state is still the one of the save."""
        assert self._taken is not None
        (state, digest), self._taken = self._taken, None
        request, mine = self._request, self._request.part
        held = PartHeld(
            request.ticket,
            mine.host,
            frozenset((digest,)),
            time.monotonic() - request.began,
            request.cursor_text,
            is_in_memory=False,
        )
        try:
            self._context.tell_agent(to_message(held))
            self._context.tell_agent(to_message(self._written(state)))
        except (OSError, MemoryError) as error:
            self._failure = error

    def _written(self, state: Tensors) -> ShareWritten | WorkFailed:
        ticket, mine = self._request.ticket, self._request.part
        layout, header = self._plan.layout, self._plan.header(ticket)
        staging = self._plan.open_store().staging(*ticket.key)

        def write(shard: int) -> str:
            record = staging.write_shard(state, layout, shard, header)
            rows = ImageMap.of(layout, (shard,)).rows_of(record, header)
            return base64.b64encode(rows).decode()

        try:
            with ThreadPoolExecutor(MOST_THREADS, "holdfast-shard") as threads:
                texts = threads.map(write, written_by(mine.host, mine.hosts, layout.writers))
            return ShareWritten(ticket, mine.host, tuple(texts))
        except (CheckpointError, OSError, MemoryError) as error:
            is_full = isinstance(error, StorageFailed) and error.is_full
            return WorkFailed(ticket, mine.host, reason_of(error), is_full)


def reason_of(failure: BaseException) -> str:
    """Return what a user can read; an error that nobody has foreseen is named with its type."""
    if isinstance(failure, (CheckpointError, OSError)):
        return str(failure)
    return f"{type(failure).__name__}: {failure}".removesuffix(": ")
