"""A stream that one worker of the world reads, and all workers have.

The lowest rank reads a batch and broadcasts it whole.  So any survivor can compute any of its
microbatches again.  When the reader dies, the next one opens its own pipeline and reads up to the
position.  It compares what it sees with what the dead reader has sent.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.exchange.vector import aligned_vector
from holdfast.runtime.pipelines.batch import Batch
from holdfast.runtime.pipelines.batch_message import decode, encode
from holdfast.runtime.pipelines.stream import BatchStream, Mark, Position, changed, next_mark


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


class Turns(Protocol):
    """Takes note of work that no peer has to help with."""

    def needing_no_peer(self) -> AbstractContextManager[object]:
        """Note such work, while the peers may wait for this worker."""


class _NoTurns:
    def needing_no_peer(self) -> AbstractContextManager[object]:
        return nullcontext()


NO_TURNS: Turns = _NoTurns()
"""Nobody watches how long the reading takes."""


class SharedStream:
    """Batches that are read once and that every worker has.

    Args:
        stream: this worker's own pipeline, which is read only while it is the lowest rank.
        kept: batches to keep, at least 2; a step may be done again after a repair.
    """

    def __init__(self, stream: BatchStream, kept: int = 2) -> None:
        self._stream = stream
        self._kept = max(kept, 2)
        self._recent: dict[Position, Batch] = {}
        self._first: Batch | None = None
        self._is_checked = False
        self.mark: Mark | None = None

    def first(self) -> Batch | None:
        """Return the first batch of all, which this worker reads itself."""
        if self._first is None:
            position = Position(0, 0)
            self._first = self._stream.read(position)
            if self._first is not None:
                self._recent[position] = self._first
        return self._first

    def fetch(
        self, position: Position, communicator: Communicator, turns: Turns = NO_TURNS
    ) -> Batch | None:
        """Return the batch at ``position``, None if the pass ends before it.

        All workers call this at the same point, with the same position.

        Raises:
            WorldBroken: a member died.
            ProgramError: the pipeline is not the same everywhere, or gives no batches; raised
                on all workers alike.
        """
        if communicator.size == 1:
            with turns.needing_no_peer():
                batch = self._find(position)
        else:
            batch = self._fetch_together(position, communicator, turns)
        if batch is not None:
            self._keep(position, batch)
        return batch

    def has(self, position: Position, communicator: Communicator, turns: Turns = NO_TURNS) -> bool:
        """Return whether there is a batch at ``position``; all workers call this alike.

        Raises:
            WorldBroken: a member died.
            ProgramError: the pipeline gives something else than batches.
        """
        answer = _NOTHING
        if communicator.rank == 0:
            with turns.needing_no_peer():
                answer = self._answer(position, is_wanted=False)
        if communicator.size > 1:
            answer = _broadcast(answer, communicator)
        if answer.kind is _Kind.ERROR:
            raise ProgramError(answer.payload.tobytes().decode())
        return answer.kind is not _Kind.END

    def resume(self, mark: Mark | None) -> None:
        """Go on after ``mark``, which is part of a restored state; it is compared on the way."""
        self.mark = mark
        self._is_checked = True

    def _fetch_together(
        self, position: Position, communicator: Communicator, turns: Turns
    ) -> Batch | None:
        answer = _NOTHING
        if communicator.rank == 0:
            with turns.needing_no_peer():
                answer = self._answer(position)
        answer = _broadcast(answer, communicator)
        if answer.kind is _Kind.ERROR:
            raise ProgramError(answer.payload.tobytes().decode())
        batch = None if answer.kind is _Kind.END else decode(answer.payload)
        if batch is not None and answer.kind is _Kind.CHECKED:
            digest = batch.digest
            if communicator.rank:
                with turns.needing_no_peer():
                    digest = self._own_digest(position)
            self._compare(position, digest, communicator)
        return batch

    def _answer(self, position: Position, *, is_wanted: bool = True) -> _Answer:
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

    def _find(self, position: Position) -> Batch | None:
        if position in self._recent:
            return self._recent[position]
        self._stream.expect(self.mark)
        batch = self._stream.read(position)
        if batch is not None:
            # Before the broadcast, which may break: some pipelines cannot go back.
            self._recent[position] = batch
        return batch

    def _own_digest(self, position: Position) -> int:
        """Return the digest of the batch that this worker reads itself, 0 without one."""
        own = self._find(position)
        self._stream.release()
        return 0 if own is None else own.digest

    def _compare(self, position: Position, digest: int, communicator: Communicator) -> None:
        """Compare the first batch of the launch with the one that each worker has read itself."""
        digests = communicator.allgather_bytes(digest.to_bytes(8, "little"))
        self._is_checked = True
        if len(set(digests)) > 1:
            raise changed(self._stream.source, position, "to another worker")

    def _keep(self, position: Position, batch: Batch) -> None:
        if self.mark is None or self.mark.position != position:
            self.mark = next_mark(self.mark, position, batch)
        self._recent.pop(position, None)
        self._recent[position] = batch
        for old in list(self._recent)[: -self._kept]:
            del self._recent[old]


def _broadcast(answer: _Answer, communicator: Communicator) -> _Answer:
    head = np.array([answer.kind, len(answer.payload)], np.int64)
    communicator.broadcast(head, 0)
    kind, length = (int(value) for value in head)
    payload = answer.payload
    if communicator.rank:
        payload = _aligned(length)
    elif not payload.flags.writeable:
        payload = payload.copy()
    if length:
        communicator.broadcast(payload, 0)
    return _Answer(_Kind(kind), payload)


def _aligned(length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return bytes that begin at a multiple of 64: TensorFlow copies all others."""
    return aligned_vector(-(-length // 4)).view(np.uint8)[:length]
