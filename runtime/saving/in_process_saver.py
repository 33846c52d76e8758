"""The way of a save without the agent's memory: the first worker commits it by itself.

All workers hold the same state, so one of them can save all of it.  It copies the state into
memory of its own, and a thread commits that.  Without memory for a copy, it writes from the
state itself, and training waits.  Nothing is committed before all workers have compared
their states.

Both ways hand out a `PendingSave`, and copy into `HostBuffers`: of the agent, or of this process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Protocol

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.held_save import HeldSave, Parts
from holdfast.runtime.saving.plan import SavePlan, SaveRequest
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.system.witnessed_time import Bound
from holdfast.runtime.worker.context import WorkerContext

FREE_WITHIN_S = 60.0
"""So long a save waits for its memory; a disk that is slower costs it, and the next one waits."""

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14

_AT_ONCE_BYTES = 32 * 2**20
"""This takes 13 ms and holds the interpreter's lock, which heartbeats need."""

_BUFFERS = 2
_LOOK_S = 0.1
_CARE_ENDS_WITHIN_S = 10.0


class SnapshotNotWritten(CheckpointError):
    """The host's writer has failed; the journal holds its reason."""


class MemoryInUse(CheckpointError):
    """The memory for a save is still read for an earlier one, and must not change."""

    def __init__(self) -> None:
        super().__init__(
            f"its memory is still being written to the disk after {FREE_WITHIN_S:.0f} s, for an "
            "earlier save; look at the disk of the run directory"
        )


class PendingSave(Protocol):
    """One worker's part of a save, after its copy."""

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Take the digests of the part; another thread calls this once.

        ``state`` is still the state that was copied.
        """

    def compared(self) -> None:
        """Go on: all workers have the same state; ``state`` is still as it was."""

    @property
    def is_done(self) -> bool:
        """Whether the save is durable, or has failed."""

    @property
    def failure(self) -> BaseException | None:
        """The error if it has failed, else None."""

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until it is done."""


class NothingToSave:
    """The part of a worker that copies nothing, since another one saves the whole state."""

    is_done = True
    failure: BaseException | None = None

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Do nothing."""

    def compared(self) -> None:
        """Do nothing."""

    def wait(self, timeout_s: float) -> None:
        """Do not wait."""


class FailedSave(NothingToSave):
    """The part of a worker that could not copy anything."""

    def __init__(self, error: BaseException) -> None:
        self.failure = error


class InProcessSaver:
    """Saves from this process, if it is the first worker."""

    def __init__(self, context: WorkerContext, buffers: int = _BUFFERS) -> None:
        self._context = context
        self._count = buffers
        self._thread = DaemonExecutor(1, "holdfast-committer")
        self._plan: SavePlan | None = None
        self._committer: Committer | None = None
        self._buffers: HostBuffers | None = None
        self._share: ShareImage | None = None
        self._saves: dict[int, _OwnSave] = {}
        """The newest save in each buffer."""

    def prepare(self, plan: SavePlan, part: int, parts: int, *, generation: int) -> None:
        """Begin to care for old steps, if this is the first worker."""
        if part == 0 and plan != self._plan:
            self._let_go()
            self._plan = plan
            with contextlib.suppress(CheckpointError, OSError):  # each save tries again
                self._ready()

    def begin(self, request: SaveRequest, state: Tensors) -> PendingSave:
        """Copy ``state`` if there is memory for it; ``hand_over`` and ``compared`` must follow.

        Raises ``CheckpointError``, ``OSError`` or ``MemoryError`` if that is not possible just
        now, or its memory is in use; the next save tries again.
        """
        if request.part != 0:
            return NothingToSave()
        committer = self._ready()
        if not self._count:
            return _StateSave(committer, request)
        ticket = request.ticket
        buffer = ticket.attempt % self._count
        self._wait_until_free(buffer)
        share, memory = self._memory(committer, buffer)
        share.copy(memory, state, ticket.header(committer.plan.run_id))
        save = _OwnSave(self._thread, committer, (share, memory), request)
        self._saves[buffer] = save
        return save

    def close(self) -> None:
        """Let the care of old steps end, and give the memory back."""
        self._let_go()
        self._thread.shutdown()

    def _wait_until_free(self, buffer: int) -> None:
        """Wait until the thread has written the save that had this buffer.

        The survivors of a death save again at once.  Raises ``MemoryInUse`` if it takes too long.
        """
        before = self._saves.get(buffer)
        bound = Bound(FREE_WITHIN_S)
        while before is not None and before.is_being_written:
            if bound.has_passed:
                raise MemoryInUse
            before.wait(_LOOK_S)

    def _ready(self) -> Committer:
        if self._committer is None:
            assert self._plan is not None  # it was prepared
            self._committer = Committer(self._plan, ContextReport(self._context))
        return self._committer

    def _memory(self, committer: Committer, buffer: int) -> tuple[ShareImage, memoryview]:
        if self._buffers is None or self._share is None:
            image_map = committer.image_map
            self._buffers = HostBuffers.own(self._count, image_map.size)
            self._share = ShareImage(image_map, share_of(image_map, 0, 1), committer.plan.run_id)
        return self._share, self._buffers[buffer]

    def _let_go(self) -> None:
        if self._committer is not None:
            self._committer.close(_CARE_ENDS_WITHIN_S)
        # A commit that hangs may still read the buffers: they go with its last view.
        self._committer = self._buffers = self._share = None
        self._saves.clear()


class _OwnSave:
    """A copy of the state in memory of this process, which a thread commits."""

    def __init__(
        self,
        thread: DaemonExecutor,
        committer: Committer,
        place: tuple[ShareImage, memoryview],
        request: SaveRequest,
    ) -> None:
        self._thread = thread
        self._committer = committer
        self._share, self._memory = place
        self._ticket = request.ticket
        self._parts = Parts(request.ticket, cursor=request.cursor)
        self._commit: Future[None] | None = None
        self._unbegun: MemoryError | OSError | None = None

    def hand_over(self, state: Tensors, state_digest: str) -> None:
        """Write the records of the copy behind it."""
        header = self._ticket.header(self._committer.plan.run_id)
        try:
            self._share.describe(self._memory, state, header)
        except MemoryError as error:
            self._unbegun = error
        self._parts.digests[0] = state_digest

    def compared(self) -> None:
        """Let the thread commit."""
        if self._unbegun is not None:
            return
        try:
            self._commit = self._thread.submit(self._run)
        except OSError as error:
            self._unbegun = error

    def _run(self) -> None:
        committer = self._committer
        save = HeldSave.of(committer.plan, committer.image_map, self._parts, self._memory)
        committer.commit(save)

    @property
    def is_done(self) -> bool:
        """Whether the commit has ended, or will not begin."""
        return self._unbegun is not None or (self._commit is not None and self._commit.done())

    @property
    def is_being_written(self) -> bool:
        """Whether the commit has been asked for and has not ended."""
        return self._commit is not None and not self._commit.done()

    @property
    def failure(self) -> BaseException | None:
        """The error if the commit has failed, else None."""
        if self._commit is None or not self._commit.done():
            return self._unbegun
        return self._commit.exception()

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the commit."""
        if self._commit is not None:
            wait([self._commit], timeout_s)


class _StateSave:
    """The state itself, which is written while training waits."""

    def __init__(self, committer: Committer, request: SaveRequest) -> None:
        self._committer = committer
        self._request = request
        self._state: Tensors | None = None
        self.is_done = False
        self.failure: BaseException | None = None

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
            self.failure = error
        self.is_done = True

    def wait(self, timeout_s: float) -> None:
        """Do not wait: it is done when ``compared`` returns."""


class ContextReport:
    """The report of a committer that works in a worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event into the worker's journal."""
        self._context.journal.record(event, **fields)

    def notify(self, text: str) -> None:
        """Show one line to the user."""
        self._context.notify(text)

    def disk_moved(self, change: int) -> None:
        """Do nothing: nobody watches this committer but the deadline of the save."""


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

    @staticmethod
    def own(count: int, size: int) -> HostBuffers:
        """Return buffers in this process's own memory, which takes none before it is written."""
        return HostBuffers([mmap.mmap(-1, size) for _ in range(count)])

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, buffer: int) -> memoryview:
        return self._views[buffer]

    def touch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Map the pages of these places now, so that a copy meets no page faults.

        Raises ``OSError`` if the system has no memory for them.
        """
        for start, length in _joined(spans):
            for found in self._maps:
                for place in range(start, start + length, _AT_ONCE_BYTES):
                    _touch(found, place, min(_AT_ONCE_BYTES, start + length - place))

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


def _touch(found: mmap.mmap, start: int, length: int) -> None:
    length = min(length, len(found) - start)
    try:
        found.madvise(_POPULATE_WRITE, start, length)
    except OSError as error:
        if error.errno != 22:  # EINVAL: an older kernel
            raise
        for place in range(start, start + length, mmap.PAGESIZE):
            found[place] = found[place]
