"""Batches by their position, and a proof that they are what they were.

A *position* is a pass over the pipeline, and a batch within it.  The *mark* of a stream is one
number over the digests of the pass's batches so far.  A worker that reads a pass
again, after the death of the reader or a relaunch, compares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.recovery.splitmix import chain
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.pipelines.batch import Batch, make_batch
from holdfast.runtime.pipelines.source import Source


@dataclass(frozen=True, slots=True, order=True)
class Position:
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

    position: Position
    chain: int
    is_whole: bool
    """Whether it begins with the first batch of the pass."""


def next_mark(mark: Mark | None, position: Position, batch: Batch) -> Mark:
    """Return the mark after ``batch``, from the mark of the batch before it."""
    before = 0
    is_whole = position.within == 0
    if mark is not None and mark.position == Position(position.passing, position.within - 1):
        before, is_whole = mark.chain, mark.is_whole
    return Mark(position, chain(before, batch.digest), is_whole)


class BatchStream:
    """Reads the batches of a source, in order, from any position on."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._iterator: Iterator[Any] = iter(())
        self._next: Position | None = None
        self._mark: Mark | None = None
        self._expected: Mark | None = None

    def expect(self, mark: Mark | None) -> None:
        """Compare with ``mark``, which another worker or launch has seen, on the way."""
        self._expected = mark

    def read(self, position: Position) -> Batch | None:
        """Return the batch at ``position``, None if the pass ends before it.

        Raises:
            ProgramError: a batch is not what it was, or is no batch at all.
        """
        if self._next is None or not _is_ahead(self._next, position):
            first, self._iterator = self.source.open(position.passing, position.within)
            self._next = Position(position.passing, first)
        while True:
            at = self._next
            batch = self._read_next(at)
            if batch is None or at == position:
                return batch

    def release(self) -> None:
        """Let the open pass and its buffers go; the next read opens it again."""
        self._next, self._iterator = None, iter(())

    def _read_next(self, at: Position) -> Batch | None:
        element = next(self._iterator, self)
        if element is self:
            return None
        batch = make_batch(at.within, element, self.source.array)
        self._mark = next_mark(self._mark, at, batch)
        self._next = Position(at.passing, at.within + 1)
        self._compare(self._mark)
        return batch

    def _compare(self, mark: Mark) -> None:
        expected = self._expected
        if expected is None or expected.position != mark.position:
            return
        if expected.is_whole and mark.is_whole and expected.chain != mark.chain:
            raise changed(self.source, mark.position, "when it was read again")


def changed(source: Source, position: Position, when: str) -> ProgramError:
    """Return the error of a pipeline that is not the same ``when`` it is read."""
    return ProgramError(
        f"{source.name} gave other samples {when}, at or before {position.words}; they were not "
        f"trained on: {source.advice}"
    )


def _is_ahead(here: Position, wanted: Position) -> bool:
    return here.passing == wanted.passing and here.within <= wanted.within
