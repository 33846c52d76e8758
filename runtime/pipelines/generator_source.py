"""Python generators as sources: they can only be read on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.runtime.pipelines.source import ForwardSource

_NAME = "the generator"

_LOOKED_AT = 2
"""Batches from which Keras learns the shapes of a generator."""


def generator_source(generator: Iterator[Any]) -> ForwardSource:
    """Return the source of a generator that is read until no more steps are wanted."""
    return ForwardSource(_NAME, lambda: generator, np.asarray, is_endless=True)


def validation_source(generator: Iterator[Any], steps: int) -> ForwardSource:
    """Return the source of a generator whose validations have so many batches each.

    Keras looks at the first two batches, and each validation begins with them again.  Then it
    goes on in the generator.
    """
    first: list[Any] = []

    def begin() -> Iterator[Any]:
        first.extend(itertools.islice(generator, _LOOKED_AT - len(first)))
        return itertools.islice(itertools.chain(first, generator), steps)

    return ForwardSource(_NAME, begin, np.asarray, batches=steps)


class ListSource:
    """The batches of a generator that ends, kept in memory: there is one pass."""

    name = _NAME
    advice = ForwardSource.advice
    is_endless = False
    repeats = False

    def __init__(self, generator: Iterator[Any]) -> None:
        self._elements = list(generator)
        self.batches: int | None = len(self._elements)

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin the only pass at batch ``start``."""
        return start, iter(self._elements[start:] if number == 0 else ())

    def leave(self, number: int, start: int) -> None:
        """Do nothing: the generator has ended."""

    def array(self, leaf: Any) -> Any:
        """Return a leaf of a batch as an array."""
        return np.asarray(leaf)
