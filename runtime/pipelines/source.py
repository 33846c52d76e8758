"""A source of batches: passes over a pipeline, each opened by its number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Source(Protocol):
    """Passes over a pipeline that are the same in every process of the run."""

    @property
    def name(self) -> str:
        """The pipeline in the user's words, such as "the tf.data.Dataset"."""

    @property
    def batches(self) -> int | None:
        """Batches of one pass, or None if it is not known or there is no end."""

    @property
    def is_endless(self) -> bool:
        """Whether a pass is known to have no end."""

    @property
    def repeats(self) -> bool:
        """Whether the script says that a pass follows the other, within an epoch too."""

    @property
    def advice(self) -> str:
        """What to do if its batches are not the same when they are read again."""

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number`` (from 0), if possible at batch ``start``.

        Returns the batch that the iterator begins with, at most ``start``, and the iterator
        over elements as ``fit`` takes them.
        """

    def leave(self, number: int, start: int) -> None:
        """Bring what the script holds to the state that reading up to here leaves it in.

        ``start`` batches of pass ``number`` are read, and all passes before it.
        """

    def array(self, leaf: Any) -> Any:
        """Return a leaf of an element as an array, a view where possible."""


class ForwardSource:
    """Passes that can only be read one after the other: what came before is read again.

    Args:
        name: the pipeline in the user's words.
        begin: returns the iterator of the next pass.
        array: makes an array of a leaf.
        batches: batches of one pass, None if not known.
        is_endless: whether a pass is known to have no end.
    """

    repeats = False
    advice = (
        "make it the same each time: draw from a generator with a fixed seed that begins anew "
        "with each pass, and use no clock and no unordered set"
    )

    def __init__(
        self,
        name: str,
        begin: Callable[[], Iterator[Any]],
        array: Callable[[Any], Any],
        *,
        batches: int | None = None,
        is_endless: bool = False,
    ) -> None:
        self.name = name
        self.batches = batches
        self.is_endless = is_endless
        self.array = array
        self.leave_below: Callable[[int, int], None] | None = None
        """Leaves what the passes are made from, where that has calls of its own to make."""
        self.begin = begin
        self._pass = -1
        self._read = 0
        self._iterator: Iterator[Any] = iter(())

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Read on to pass ``number``; one that is under way goes on where it is."""
        if number < self._pass or (number == self._pass and start < self._read):
            raise ValueError(
                f"{self.name} is at batch {self._read} of pass {self._pass} and cannot go back "
                f"to batch {start} of pass {number}"
            )
        while self._pass < number:
            for _ in self._iterator:  # a pass that is left early may leave another state
                pass
            self._iterator, self._read = iter(self.begin()), 0
            self._pass += 1
        return self._read, self._counted()

    def leave(self, number: int, start: int) -> None:
        """Read on to here, as the worker did that has read for all."""
        read, elements = self.open(number, start)
        for _ in itertools.islice(elements, start - read):
            pass
        if self.leave_below is not None:
            self.leave_below(number, start)

    def _counted(self) -> Iterator[Any]:
        for element in self._iterator:
            self._read += 1
            yield element


class FirstBatches:
    """The first batches of each pass of a pipeline that has no end."""

    is_endless = False
    repeats = False

    def __init__(self, source: Source, batches: int) -> None:
        self.name, self.advice = source.name, source.advice
        self.batches: int | None = batches
        self._each = batches
        self._source = source

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number``, if possible at batch ``start``."""
        first, elements = self._source.open(number, start)
        return first, itertools.islice(elements, self._each - first)

    def leave(self, number: int, start: int) -> None:
        """Leave the pipeline as it is left after these batches."""
        self._source.leave(number, start)

    def array(self, leaf: Any) -> Any:
        """Return a leaf of an element as an array."""
        return self._source.array(leaf)


def first_batches(source: Source, batches: int) -> Source:
    """Return a source whose passes are the first batches of those of an endless ``source``."""
    if not isinstance(source, ForwardSource):
        return FirstBatches(source, batches)
    found = ForwardSource(
        source.name,
        lambda: itertools.islice(source.begin(), batches),
        source.array,
        batches=batches,
    )
    found.leave_below = source.leave_below
    return found


def forward(source: Source) -> ForwardSource:
    """Return a source that reads every pass of ``source`` from the first one on."""
    numbers = itertools.count()
    made = ForwardSource(
        source.name,
        lambda: source.open(next(numbers), 0)[1],
        source.array,
        batches=source.batches,
        is_endless=source.is_endless,
    )
    made.repeats = source.repeats
    made.leave_below = source.leave
    return made
