"""Batches by their position, which one worker of the world reads and all workers have.

A *position* is a pass over the pipeline, and a batch within it.  The *mark* of a stream is one
number over the digests of the pass's batches so far.

The lowest rank reads a batch and broadcasts it whole.  So any survivor can compute any of its
microbatches again.  When the reader dies, the next one opens its own pipeline and reads up to the
position.  It compares the mark of what it sees with that of what the dead reader has sent.  A
relaunch compares that of its checkpoint.

Where rows can be made by their numbers (`tf_rows`), each worker makes its own, and nothing is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np

from holdfast.recovery.order import chain
from holdfast.runtime.data.batch import OwnRows, Ranges, WholeBatch, decode, encode, make_batch
from holdfast.runtime.data.source import ForwardSource, PyDatasetSource, Source
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.membership import Communicator
from holdfast.runtime.exchange.memory import aligned_vector


@dataclass(frozen=True, slots=True, order=True)
class StreamPosition:
    """Batch ``within``, from 0, of pass ``passing``, from 0."""

    passing: int
    within: int

    @property
    def words(self) -> str:
        """The position as a user counts."""
        return f"batch {self.within + 1} of pass {self.passing + 1}"


@dataclass(frozen=True, slots=True)
class Mark:
    """The proof of all batches of a pass up to ``position``."""

    position: StreamPosition
    chain: int
    is_whole: bool
    """Whether it begins with the first batch of the pass."""
    last: int | None = None
    """The digest of the batch at ``position``, None if it is not known."""

    def differs(self, found: Mark) -> bool:
        """Return whether another mark of the same position contradicts this one."""
        are_whole = self.is_whole and found.is_whole
        return self.position == found.position and (
            self.last not in (None, found.last) or (are_whole and self.chain != found.chain)
        )


def next_mark(mark: Mark | None, position: StreamPosition, batch: WholeBatch) -> Mark:
    """Return the mark after ``batch``, from the mark of the batch before it."""
    before = 0
    is_whole = position.within == 0
    if mark is not None and mark.position == StreamPosition(position.passing, position.within - 1):
        before, is_whole = mark.chain, mark.is_whole
    return Mark(position, chain(before, batch.digest), is_whole, batch.digest)


def changed(source: Source, position: StreamPosition, when: str) -> ProgramError:
    """Return the error of a pipeline that is not the same ``when`` it is read."""
    return ProgramError(
        f"{source.name} gave other samples {when}, at or before {position.words}; they were not "
        f"trained on: {source.advice}"
    )


class _Kind(IntEnum):
    BATCH = 0
    CHECKED = 1
    """A batch that every worker reads itself too, and compares."""
    END = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the reader found: a batch, the end of the pass, or an error of the program."""

    kind: _Kind
    payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


_NOTHING = _Answer(_Kind.END, np.zeros(0, np.uint8))


Alone: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Makes the context of work that no peer has to help with, while peers may wait for this worker."""


class SharedStream:
    """Batches that are read once and that every worker has.

    Args:
        source: this worker's own pipeline, which is read only while it is the lowest rank.
        kept: batches to keep, at least 2; a step may be done again after a repair.
    """

    def __init__(self, source: Source, kept: int = 2) -> None:
        self._source = source
        self._iterator: Iterator[Any] = iter(())
        self._next: StreamPosition | None = None
        self._read_mark: Mark | None = None
        self._kept = max(kept, 2)
        self._recent: dict[StreamPosition, WholeBatch] = {}
        self._first: WholeBatch | None = None
        self._is_checked = False
        self.mark: Mark | None = None

    def first(self) -> WholeBatch | None:
        """Return the first batch of all, which this worker reads itself."""
        if self._first is None and isinstance(self._source, PyDatasetSource):
            self._first = self._source.first()  # it is read again once its epoch begins
        elif self._first is None:
            position = StreamPosition(0, 0)
            self._first = self._read(position)
            if self._first is not None:
                self._recent[position] = self._first
        return self._first

    def fetch(
        self, position: StreamPosition, communicator: Communicator, alone: Alone = nullcontext
    ) -> WholeBatch | None:
        """Return the batch at ``position``, None if the pass ends before it.

        All workers call this at the same point, with the same position.

        Raises:
            WorldBroken: a member died.
            ProgramError: the pipeline is not the same everywhere, or gives no batches; raised
                on all workers alike.
        """
        if communicator.size == 1:
            with alone():
                batch = self._find(position)
        else:
            answer = self._shared_answer(position, communicator, alone)
            batch = None if answer.kind is _Kind.END else decode(answer.payload)
            if batch is not None and answer.kind is _Kind.CHECKED:
                self._compare(position, batch.digest, communicator, alone)
        if batch is not None:
            self._keep(position, batch)
        return batch

    def has(
        self, position: StreamPosition, communicator: Communicator, alone: Alone = nullcontext
    ) -> bool:
        """Return whether there is a batch at ``position``; all workers call this alike.

        Raises:
            WorldBroken: a member died.
            ProgramError: the pipeline gives something else than batches.
        """
        return (
            self._shared_answer(position, communicator, alone, is_wanted=False).kind
            is not _Kind.END
        )

    def release(self) -> None:
        """Let the open pass and its buffers go; the next read opens it again."""
        self._next, self._iterator = None, iter(())

    def resume(self, mark: Mark | None) -> None:
        """Go on after ``mark``, which is part of a restored state; it is compared on the way."""
        self.mark = mark
        self._is_checked = True

    def _shared_answer(
        self,
        position: StreamPosition,
        communicator: Communicator,
        alone: Alone,
        *,
        is_wanted: bool = True,
    ) -> _Answer:
        """Return what the lowest rank has found at ``position``; raise its error on all ranks."""
        answer = _NOTHING
        if communicator.rank == 0:
            with alone():
                answer = self._own_answer(position, is_wanted=is_wanted)
        if communicator.size > 1:
            answer = _broadcast(answer, communicator)
        if answer.kind is _Kind.ERROR:
            raise ProgramError(answer.payload.tobytes().decode())
        return answer

    def _own_answer(self, position: StreamPosition, *, is_wanted: bool) -> _Answer:
        """Return what is at ``position``, without the batch itself unless it is wanted."""
        try:
            batch = self._find(position)
        except ProgramError as error:
            return _Answer(_Kind.ERROR, np.frombuffer(str(error).encode(), np.uint8))
        if batch is None:
            return _NOTHING
        if not is_wanted:
            return _Answer(_Kind.BATCH, _NOTHING.payload)
        return _Answer(_Kind.BATCH if self._is_checked else _Kind.CHECKED, encode(batch))

    def _find(self, position: StreamPosition) -> WholeBatch | None:
        if position in self._recent:
            return self._recent[position]
        batch = self._read(position, self.mark)
        if batch is not None:
            # Before the broadcast, which may break: some pipelines cannot go back.
            self._recent[position] = batch
        return batch

    def _read(self, position: StreamPosition, expected: Mark | None = None) -> WholeBatch | None:
        """Return the batch at ``position``, None if the pass ends before it.

        Raises:
            ProgramError: a batch is not what it was, or is no batch at all; on the way it is
                compared with ``expected``, which another worker or launch has seen.
        """
        here = self._next
        is_read_on = here is None and isinstance(self._source, ForwardSource)
        if expected is not None and is_read_on and expected.position.passing < position.passing:
            self._read(expected.position, expected)  # it is read again in any case, and compared so
            here = self._next
        if here is None or here.passing != position.passing or here.within > position.within:
            first, self._iterator = self._source.open(position.passing, position.within)
            here = self._next = StreamPosition(position.passing, first)
        while True:
            batch = self._read_next(here, expected)
            if batch is None or here == position:
                return batch
            here = StreamPosition(here.passing, here.within + 1)

    def _read_next(self, at: StreamPosition, expected: Mark | None) -> WholeBatch | None:
        element = next(self._iterator, self)
        if element is self:
            return None
        batch = make_batch(at.within, element, self._source.array)
        self._read_mark = next_mark(self._read_mark, at, batch)
        self._next = StreamPosition(at.passing, at.within + 1)
        if expected is not None and expected.differs(self._read_mark):
            raise changed(self._source, at, "when it was read again")
        return batch

    def _compare(
        self, position: StreamPosition, digest: int, communicator: Communicator, alone: Alone
    ) -> None:
        """Compare the first batch of the launch with the one that each worker has read itself."""
        if communicator.rank:
            with alone():
                own = self._find(position)
                self.release()
                digest = 0 if own is None else own.digest
        digests = communicator.allgather_bytes(digest.to_bytes(8, "little"))
        self._is_checked = True
        if len(set(digests)) > 1:
            raise changed(self._source, position, "to another worker")

    def _keep(self, position: StreamPosition, batch: WholeBatch) -> None:
        if self.mark is None or self.mark.position != position:
            self.mark = next_mark(self.mark, position, batch)
        self._recent.pop(position, None)
        self._recent[position] = batch
        for old in list(self._recent)[: -self._kept]:
            del self._recent[old]


@dataclass(frozen=True, slots=True)
class BatchShare:
    """The parts of each batch that a worker computes, and where they lie in one of so many rows."""

    parts: frozenset[int]
    bounds: Callable[[int, int], tuple[int, int]]

    def ranges(self, samples: int) -> list[tuple[int, int]]:
        """Return the rows ``start <= row < stop`` of each part that has any."""
        found = (self.bounds(samples, part) for part in sorted(self.parts))
        return [(start, stop) for start, stop in found if start < stop]


class RowSource(Protocol):
    """A pipeline of ``batches`` a pass, of which each worker can make some rows."""

    batches: int

    def open(self, number: int, start: int, ranges: Ranges) -> Iterator[OwnRows]:
        """Begin pass ``number`` at batch ``start``, and go on from pass to pass."""


class RowStream:
    """The rows of a worker's share of each batch, which it makes itself without the others.

    A share changes with a death; then the pass is opened anew at the batch in hand.
    """

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._iterator: Iterator[OwnRows] = iter(())
        self._share: BatchShare | None = None
        self._number = -1
        self._held: OwnRows | None = None

    def fetch(self, position: StreamPosition, share: BatchShare) -> OwnRows:
        """Return the share of the batch at ``position``."""
        number = position.passing * self._rows.batches + position.within
        if self._held is None or share != self._share or number != self._number:
            if share != self._share or number != self._number + 1:
                at = position.passing, position.within
                self._iterator = self._rows.open(*at, share.ranges)
            self._share, self._number, self._held = share, number, next(self._iterator)
        return self._held


def _broadcast(answer: _Answer, communicator: Communicator) -> _Answer:
    head = np.array([answer.kind, len(answer.payload)], np.int64)
    communicator.broadcast(head, 0)
    kind, length = (int(value) for value in head)
    payload = answer.payload
    if communicator.rank:
        # From a multiple of 64 on: TensorFlow copies all others.
        payload = aligned_vector(-(-length // 4)).view(np.uint8)[:length]
    elif not payload.flags.writeable:
        payload = payload.copy()
    if length:
        communicator.broadcast(payload, 0)
    return _Answer(_Kind(kind), payload)


_Element: TypeAlias = tuple[Any, Exception | None]
"""An element, or the error in its place; StopIteration is the end."""


class ReadAhead(Iterator[Any]):
    """The elements of an iterator that nobody else reads.

    An error of the iterator is raised by the ``next`` whose element it stands for.
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        # Of all queues only this one may be used where objects are collected, in ``__del__``.
        self._wishes: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[_Element] = SimpleQueue()
        self._error: Exception | None = None
        arguments = (elements, self._wishes, self._answers)
        threading.Thread(target=_read, args=arguments, name="reader", daemon=True).start()
        self._wishes.put(True)

    def __next__(self) -> Any:
        """Return the next element, and begin to read the one after it."""
        if self._error is None:
            element, self._error = self._answers.get()
            if self._error is None:
                self._wishes.put(True)
                return element
        if isinstance(self._error, StopIteration):
            raise StopIteration  # that one's traceback would hold this object, which holds it
        raise self._error

    def __del__(self) -> None:
        """Let the reader end, and give the iterator up."""
        self._wishes.put(False)


def _read(
    elements: Iterator[Any], wishes: SimpleQueue[bool], answers: SimpleQueue[_Element]
) -> None:
    """Answer each wish with one element; the iterator is given up at the end.

    The end is told by an exception of our own: what the iterator's comes from has frames that hold
    the iterator's handle, and they would go wherever the exception goes.
    """
    while wishes.get():
        try:
            answers.put((next(elements), None))
        except StopIteration:
            answers.put((None, StopIteration()))
            return
        except Exception as error:  # the user's code
            answers.put((None, _without_this_frame(error)))


def _without_this_frame(error: Exception) -> Exception:
    """Return the error; its traceback would keep the iterator for the thread that gets it."""
    here = error.__traceback__
    return error.with_traceback(None if here is None else here.tb_next)
