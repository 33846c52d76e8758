"""A ``keras.utils.PyDataset`` (or ``Sequence``) as a source: its batches are read by number.

Before each call of the user's methods the global generators of Python and NumPy are seeded from the
run's seed, the pass and the batch.  Afterwards they are as before.  So a batch that draws from them
is the same in every process, and nothing before it must be read.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np

from holdfast.recovery.order import SampleOrder
from holdfast.recovery.splitmix import chain
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.pipelines.batch import as_array, make_batch
from holdfast.runtime.pipelines.source import Source, forward

_FOR_ITEMS, _FOR_EPOCHS = 11, 12


class Passes(Enum):
    """What ``fit`` makes passes for; that says when Keras tells a dataset of epochs."""

    IN_ORDER = "training, in the order of the batches"
    SHUFFLED = "training, each pass in an order of its own"
    VALIDATION = "validation"


_ENDS, _BEGINS = "on_epoch_end", "on_epoch_begin"
_OF_A_VALIDATION = _ENDS, _BEGINS, _ENDS
"""What Keras calls for one validation: each evaluation resets its dataset first."""


class PyDatasetSource:
    """Passes over a PyDataset.

    Args:
        dataset: the user's object; its methods are called in the order of plain ``fit``.
        seed: the run's.
        passes: what they are made for.
        steps: batches of an epoch, None for a whole pass.

    Raises:
        ProgramError: it has no batches.
    """

    repeats = False
    advice = (
        "draw from np.random or random, which holdfast seeds for each batch, or from a "
        "generator that is made from the batch's number within __getitem__"
    )

    def __init__(self, dataset: Any, seed: int, passes: Passes, steps: int | None = None) -> None:
        self.name = f"the PyDataset {type(dataset).__name__}"
        self._dataset = dataset
        self._seed = seed
        self._passes = passes
        self.batches: int | None = dataset.num_batches
        if self.batches == 0:
            raise ProgramError(f"{self.name} has no batches: its __len__ returns 0")
        self.is_endless = self.batches is None
        self._steps = steps or self.batches
        self._order: SampleOrder | None = None
        if passes is Passes.SHUFFLED and self.batches is not None:
            self._order = SampleOrder(seed, self.batches, self.batches, 1)
        self._called = 0

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number`` at batch ``start``."""
        if self._calls_before(number, start) < self._called:
            raise ValueError(f"{self.name} cannot go back to batch {start} of pass {number}")
        return start, self._items(number, start)

    def leave(self, number: int, start: int) -> None:
        """Tell the dataset of all epochs that have begun and ended up to here."""
        calls = self._calls_before(number, start)
        is_between = start % self._steps == 0 if self._steps else start == 0
        if is_between:  # the calls before an epoch belong to it
            calls -= 2 if self._passes is Passes.VALIDATION else 1
        self._call_up_to(calls)

    def array(self, leaf: Any) -> Any:
        """Return a leaf of a batch as an array."""
        return as_array(leaf)

    def _calls_before(self, number: int, start: int) -> int:
        """Return how often Keras tells the dataset of epochs before it reads a batch.

        Training begins with an ``on_epoch_end``, because Keras resets what it reads.
        """
        if self._passes is Passes.VALIDATION:
            return len(_OF_A_VALIDATION) * number + 2
        epochs = 0
        if self._steps:
            epochs = number * -(-(self.batches or 0) // self._steps) + start // self._steps
        return 2 * epochs + 2

    def _call_up_to(self, calls: int) -> None:
        """Tell the dataset of epochs, until it was told so often in all."""
        for number in range(self._called, calls):
            self._called = number + 1
            method = _BEGINS if number % 2 else _ENDS
            if self._passes is Passes.VALIDATION:
                method = _OF_A_VALIDATION[number % len(_OF_A_VALIDATION)]
            with seeded(self._seed, _FOR_EPOCHS, number):
                getattr(self._dataset, method, _nothing)()

    def _items(self, number: int, start: int) -> Iterator[Any]:
        order = None if self._order is None else self._order.batch(number)
        for within in itertools.count(start):
            if within == self.batches:
                return
            self._call_up_to(self._calls_before(number, within))
            yield self._item(number, within, within if order is None else int(order[within]))

    def _item(self, number: int, within: int, index: int) -> Any:
        with seeded(self._seed, _FOR_ITEMS, number, within):
            return self._dataset[index]

    @property
    def is_repeatable(self) -> bool:
        """Whether its first batch is the same when it is read twice."""
        digests = {make_batch(0, self._item(0, 0, 0), self.array).digest for _ in range(2)}
        return len(digests) == 1


def py_dataset_source(dataset: Any, seed: int, passes: Passes, steps: int | None = None) -> Source:
    """Return the source of a PyDataset; one with a generator of its own is only read on.

    Raises:
        ProgramError: it has no batches.
    """
    source = PyDatasetSource(dataset, seed, passes, steps)
    return source if source.is_repeatable else forward(source)


def changes_by_epochs(dataset: Any) -> bool:
    """Return whether a dataset has a method of its own that is called at an epoch's ends."""
    return any(
        not getattr(type(dataset), name).__module__.startswith("keras.")
        for name in (_ENDS, _BEGINS)
        if hasattr(dataset, name)
    )


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
