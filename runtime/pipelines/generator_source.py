"""Python generators as sources: they can only be read on."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.runtime.model.nest import leaves
from holdfast.runtime.pipelines.batch import as_array
from holdfast.runtime.pipelines.source import ForwardSource

_NAME = "the generator"

_MOST_KEPT, _MOST_KEPT_BYTES = 1024, 1 << 28
"""Batches of a generator that are kept in memory, to know their number; one has more, or no end."""

_LOOKED_AT = 2
"""Batches from which Keras learns the shapes of a generator."""


def generator_source(generator: Iterator[Any]) -> ForwardSource:
    """Return the source of a generator that is read until no more steps are wanted."""
    return ForwardSource(_NAME, lambda: generator, as_array, is_endless=True)


def validation_source(generator: Iterator[Any], steps: int) -> ForwardSource:
    """Return the source of a generator whose validations have so many batches each.

    Keras looks at the first two batches, and each validation begins with them again.  Then it
    goes on in the generator.
    """
    first: list[Any] = []

    def begin() -> Iterator[Any]:
        first.extend(itertools.islice(generator, _LOOKED_AT - len(first)))
        return itertools.islice(itertools.chain(first, generator), steps)

    return ForwardSource(_NAME, begin, as_array, batches=steps)


def whole_source(generator: Iterator[Any]) -> ListSource | ForwardSource:
    """Return the source of a generator that is read to its end, if that comes soon."""
    kept: deque[Any] = deque()
    size = 0
    while len(kept) < _MOST_KEPT and size < _MOST_KEPT_BYTES:
        element = next(generator, kept)
        if element is kept:
            return ListSource(kept)
        kept.append(element)
        size += sum(getattr(leaf, "nbytes", 0) for leaf in leaves(element))
    return generator_source(_one_after_the_other(kept, generator))


def _one_after_the_other(kept: deque[Any], generator: Iterator[Any]) -> Iterator[Any]:
    while kept:
        yield kept.popleft()
    yield from generator


class ListSource:
    """The batches of a generator that ends, kept in memory: there is one pass."""

    name = _NAME
    advice = ForwardSource.advice
    is_endless = False
    repeats = False

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = list(elements)
        self.batches: int | None = len(self._elements)

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin the only pass at batch ``start``."""
        return start, iter(self._elements[start:] if number == 0 else ())

    def leave(self, number: int, start: int) -> None:
        """Do nothing: the generator has ended."""

    def array(self, leaf: Any) -> Any:
        """Return a leaf of a batch as an array."""
        return as_array(leaf)
