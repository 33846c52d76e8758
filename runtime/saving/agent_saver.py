"""A worker's part of a save: a copy in memory of the agent, from which the host's writer commits.

Each worker copies its share, takes the digests beside its next step, and says that it has
done so.  The outcome stands in its status.  Where the host has no memory for a
snapshot, the first worker writes from its own state instead.  Training waits then, and nothing
is written before all workers have compared their states.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeAlias

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import ImageMap, share_of
from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.event import Event
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.plan import SavePlan, SaveRequest
from holdfast.runtime.saving.save_memory import HostBuffers
from holdfast.runtime.saving.save_messages import AskMemory, PartCopied, PlanSaves
from holdfast.runtime.system.channel import FDS, to_message
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.system.witnessed_time import Bound
from holdfast.runtime.worker.context import WorkerContext

FREE_WITHIN_S = 60.0
"""So long a save waits for its memory; a disk that is slower costs it, and the next one waits."""

_LOOK_S = 0.001
_CARE_ENDS_WITHIN_S = 10.0

_World: TypeAlias = tuple[int, int, int, int]
"""This worker's part, the number of parts, the generation, and the number of its first save."""


class SnapshotNotWritten(CheckpointError):
    """The host's writer has failed; the journal holds its reason."""


class PendingSave:
    """One worker's part of a save, after its copy.

    By itself it is that of a worker that copies nothing: another one saves the whole state, or it
    could not, for a ``failure``.
    """

    def __init__(self, failure: BaseException | None = None) -> None:
        self._failure = failure

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Take the digests of the part; another thread calls this once.

        ``state`` is still the state that was copied.
        """

    def compared(self) -> None:
        """Go on: all workers have the same state; ``state`` is still as it was."""

    @property
    def is_done(self) -> bool:
        """Whether the save is durable, or has failed."""
        return True

    @property
    def failure(self) -> BaseException | None:
        """The error if it has failed, else None."""
        return self._failure

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until it is done."""


class AgentSaver:
    """Copies this worker's shares into the memory of its agent."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        # Of its own: laying out may take seconds, and no digest should wait for it.
        self._thread = DaemonExecutor(1, "holdfast-memory")
        self._desk: Future[_PreparedSave] | None = None
        self._prepared: tuple[SavePlan, _World] | None = None
        self._committer: Committer | None = None
        """That of a host without memory, if this is the first worker."""
        self._copied: dict[int, int] = {}
        """The newest attempt in each buffer that has this worker's part and its word.

        Nobody reads the memory of any other save.
        """

    def prepare(
        self, plan: SavePlan, part: int, parts: int, *, generation: int, attempt: int = 1
    ) -> None:
        """Begin to lay out this worker's share and to take its memory, in the background.

        ``generation`` is that of the world, and ``attempt`` that of its first save.
        """
        self._prepared = plan, (part, parts, generation, attempt)
        self._desk = self._thread.submit(self._lay_out, *self._prepared, self._desk)

    def begin(self, request: SaveRequest, state: Tensors) -> PendingSave:
        """Copy this worker's share of ``state``; ``hand_over`` and ``compared`` must follow.

        Raises ``OSError`` or ``MemoryError`` if this worker cannot map its memory, and
        ``CheckpointError`` if the writer still reads it; the next save tries again.
        """
        desk = self._laid_out()
        if not len(desk.buffers):
            return self._begin_without_memory(desk, request)
        buffer = desk.buffers.place_of(request.ticket.attempt)
        self._wait_until_free(buffer)
        ticket = replace(request.ticket, buffer=buffer, layout=desk.layout)
        desk.share.copy(desk.buffers[buffer], state, desk.plan.header(ticket))
        return _AgentSave(self._context, desk, replace(request, ticket=ticket), self._copied)

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
        if self._committer is not None:
            self._committer.close(_CARE_ENDS_WITHIN_S)

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
        part, parts, generation, attempt = world
        image_map = plan.image_map()
        share = ShareImage(image_map, share_of(image_map, part, parts), plan.config.record.run_id)
        layout = plan.layout_id
        desk = None if before is None or before.exception() else before.result()
        if desk is not None and desk.layout == layout:
            buffers = desk.buffers
        else:
            buffers = self._ask_for_memory(image_map, layout)
            if desk is not None:
                desk.buffers.close()
        buffers.touch(attempt, share.spans())
        if part == 0 and len(buffers):  # else this worker commits, and cares for old steps
            _send_with_content(self._context, PlanSaves(generation), encode(plan))
        return _PreparedSave(plan, layout, buffers, share)

    def _ask_for_memory(self, image_map: ImageMap, layout: str) -> HostBuffers:
        most = self._context.config.options.snapshot_memory
        question = AskMemory(layout, image_map.size, image_map.layout.nbytes, most)
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

    def _begin_without_memory(self, desk: _PreparedSave, request: SaveRequest) -> PendingSave:
        if request.part != 0:
            return PendingSave()
        if self._committer is None:
            self._committer = Committer(desk.plan, ContextReport(self._context))
        return _StateSave(self._committer, request)


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
    """A worker's part of a save that the host's writer commits.

    It waits for no comparison: the writer compares the digests of all parts by itself.
    """

    def __init__(
        self,
        context: WorkerContext,
        desk: _PreparedSave,
        request: SaveRequest,
        copied: dict[int, int],
    ) -> None:
        super().__init__()
        self._context = context
        self._desk = desk
        self._ticket, self._request = request.ticket, request
        self._copied = copied

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Write the records of the share behind the images, and say that it was copied."""
        desk, ticket, part = self._desk, self._ticket, self._request.part
        try:
            desk.share.describe(desk.buffers[ticket.buffer], state, desk.plan.header(ticket))
            cursor = encode(self._request.cursor) if part == 0 else None
            _send_with_content(self._context, PartCopied(ticket, part, state_digest), cursor)
        except (OSError, MemoryError) as error:  # nothing to spare for digests or message
            self._failure = error
        else:
            self._copied[ticket.buffer] = ticket.attempt

    @property
    def is_done(self) -> bool:
        """Whether the writer has answered, or will not."""
        return self._failure is not None or self._context.page.is_answered(self._ticket.attempt)

    @property
    def failure(self) -> BaseException | None:
        """The error if the writer was not told, or could not commit the save, else None."""
        if self._failure is not None:
            return self._failure
        if self._context.page.failed_save != self._ticket.attempt:
            return None
        return SnapshotNotWritten("the host's writer could not commit it; the journal says why")

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the answer."""
        bound = Bound(timeout_s)
        while not self.is_done and not bound.has_passed:
            time.sleep(_LOOK_S)


class _StateSave(PendingSave):
    """The state itself, which is written while training waits: done when ``compared`` returns."""

    is_done = False

    def __init__(self, committer: Committer, request: SaveRequest) -> None:
        super().__init__()
        self._committer = committer
        self._request = request
        self._state: Tensors | None = None

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Remember the state."""
        self._state = state

    def compared(self) -> None:
        """Write the state; it is still the one of the save."""
        assert self._state is not None
        state, self._state = self._state, None
        try:
            self._committer.commit_state(self._request.ticket, self._request.cursor, state)
        except Exception as error:
            self._failure = error
        self.is_done = True


class ContextReport:
    """The report of a committer that works in a worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def record(self, event: Event) -> None:
        """Write an event into the worker's journal."""
        self._context.journal.record(event)

    def notify(self, text: str) -> None:
        """Show one line to the user."""
        self._context.notify(text)

    def disk_moved(self, change: int) -> None:
        """Do nothing: nobody watches this committer but the deadline of the save."""


def _send_with_content(
    context: WorkerContext, message: PlanSaves | PartCopied, content: bytes | None
) -> None:
    """Send the agent a message, with content of any size in memory beside it."""
    if content is None:
        context.tell_agent(to_message(message))
        return
    fd = os.memfd_create("holdfast-message", os.MFD_CLOEXEC)
    try:
        os.truncate(fd, len(content))
        os.pwrite(fd, content, 0)
        context.tell_agent(to_message(message), (fd,))
    finally:
        os.close(fd)
