"""A ``keras.utils.PyDataset`` (or ``Sequence``) as a source: its batches are read by number.

Before each call of the user's methods the global generators of Python and NumPy are seeded from
the run's seed, the pass and the batch, and afterwards they are as before.  So a batch that draws
from them is the same in every process, and nothing before it must be read.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.recovery.order import SampleOrder
from holdfast.recovery.splitmix import chain
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.pipelines.batch import make_batch
from holdfast.runtime.pipelines.source import Source, forward

_FOR_ITEMS, _FOR_EPOCH_END, _FOR_EPOCH_BEGIN = 11, 12, 13


class PyDatasetSource:
    """Passes over a PyDataset.

    Args:
        dataset: the user's object; its methods are called in the order of plain ``fit``.
        seed: the run's.
        is_shuffled: whether each pass takes the batches in an order of its own.

    Raises:
        ProgramError: it has no batches.
    """

    repeats = False
    advice = (
        "draw from np.random or random, which holdfast seeds for each batch, or from a "
        "generator that is made from the batch's number within __getitem__"
    )

    def __init__(self, dataset: Any, seed: int, *, is_shuffled: bool) -> None:
        self.name = f"the PyDataset {type(dataset).__name__}"
        self._dataset = dataset
        self._seed = seed
        self.batches: int | None = dataset.num_batches
        if self.batches == 0:
            raise ProgramError(f"{self.name} has no batches: its __len__ returns 0")
        self.is_endless = self.batches is None
        self._order: SampleOrder | None = None
        if is_shuffled and self.batches is not None:
            self._order = SampleOrder(seed, self.batches, self.batches, 1)
        self._passes_ended = 0
        self._begun = -1

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number`` at batch ``start``."""
        if number < self._passes_ended:
            raise ValueError(f"{self.name} cannot go back to pass {number}")
        self.leave(number, start)
        self._begin(number)
        return start, self._items(number, start)

    def leave(self, number: int, start: int) -> None:
        """Tell the dataset of the ends of all passes before ``number``."""
        del start
        while self._passes_ended < number:
            self._begin(self._passes_ended)
            self._call("on_epoch_end", _FOR_EPOCH_END, self._passes_ended)
            self._passes_ended += 1

    def array(self, leaf: Any) -> Any:
        """Return a leaf of a batch as an array."""
        return np.asarray(leaf)

    def _begin(self, number: int) -> None:
        if self._begun < number:
            self._begun = number
            self._call("on_epoch_begin", _FOR_EPOCH_BEGIN, number)

    def _items(self, number: int, start: int) -> Iterator[Any]:
        order = None if self._order is None else self._order.batch(number)
        for within in itertools.count(start):
            if within == self.batches:
                return
            yield self._item(number, within, within if order is None else int(order[within]))

    def _item(self, number: int, within: int, index: int) -> Any:
        with seeded(self._seed, _FOR_ITEMS, number, within):
            return self._dataset[index]

    def _call(self, method: str, purpose: int, number: int) -> None:
        with seeded(self._seed, purpose, number):
            getattr(self._dataset, method, _nothing)()

    @property
    def is_repeatable(self) -> bool:
        """Whether its first batch is the same when it is read twice."""
        digests = {make_batch(0, self._item(0, 0, 0), self.array).digest for _ in range(2)}
        return len(digests) == 1


def py_dataset_source(dataset: Any, seed: int, *, is_shuffled: bool) -> Source:
    """Return the source of a PyDataset; one with a generator of its own is only read on.

    Raises:
        ProgramError: it has no batches.
    """
    source = PyDatasetSource(dataset, seed, is_shuffled=is_shuffled)
    return source if source.is_repeatable else forward(source)


@contextlib.contextmanager
def seeded(seed: int, *purpose: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy, and put back their states afterwards."""
    python, legacy = random.getstate(), np.random.get_state()
    word = chain(seed, *purpose)
    random.seed(word)
    np.random.seed(word >> 32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def _nothing() -> None:
    """Stand in for a method that an old Sequence does not have."""
