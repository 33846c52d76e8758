"""Sources of batches: passes over a pipeline, each opened by its number.

A Python generator can only be read on, and so can a dataset with a state of its own.  What came
before a position is read again then.

A ``keras.utils.PyDataset`` (or ``Sequence``) is read by number.  Before each call of the user's
methods the global generators of Python and NumPy are seeded from the run's seed, the pass and the
batch.  Afterwards they are as before.  So a batch that draws from them is the same in every
process, and nothing before it must be read.

Its samples may depend on more: on the model, on a level that a callback sets.  So every worker
tells its dataset of epochs when Keras does, whether it reads or not.  What has changed in a dataset
is a part of the state (`callbacks`).  A reader that takes over reads the batch before its own once
more, to be compared.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from holdfast.recovery.order import SampleOrder, chain
from holdfast.runtime.data.batch import WholeBatch, as_array, make_batch
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import leaves

_GENERATOR = "the generator"
_MOST_KEPT, _MOST_KEPT_BYTES = 1024, 1 << 28
"""Batches of a generator that are kept in memory, to know their number; one has more, or no end."""

_LOOKED_AT = 2
"""Batches from which Keras learns the shapes of a generator."""

_FOR_ITEMS, _FOR_EPOCHS = 11, 12
_ENDS, _BEGINS = "on_epoch_end", "on_epoch_begin"
_OF_A_VALIDATION = _ENDS, _BEGINS, _ENDS
"""What Keras calls for one validation: each evaluation resets its dataset first."""


_MOST_SEEN = 1 << 16
"""Objects that are looked at for a model."""

_NO_HOLDERS = str, bytes, int, float, complex, type(None), np.generic, ModuleType, CodeType
_LIBRARIES = frozenset(
    {"keras", "tensorflow", "numpy", "pandas", "logging", "threading", "random", "abc", "typing"}
)
"""Where types come from whose objects hold no model of the script."""


class Source(ABC):
    """Passes over a pipeline that are the same in every process of the run."""

    name: str
    """The pipeline in the user's words, such as "the tf.data.Dataset"."""
    batches: int | None
    """Batches of one pass, or None if it is not known or there is no end."""
    is_endless = False
    """Whether a pass is known to have no end."""
    repeats = False
    """Whether the script says that a pass follows the other, within an epoch too."""
    advice: str
    """What to do if its batches are not the same when they are read again."""
    array: Callable[[Any], Any] = staticmethod(as_array)
    """Returns a leaf of an element as an array, a view where possible."""

    @abstractmethod
    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number`` (from 0), if possible at batch ``start``.

        Returns the batch that the iterator begins with, at most ``start``, and the iterator
        over elements as ``fit`` takes them.
        """

    def leave(self, number: int, start: int) -> None:
        """Bring what the script holds to the state that reading up to here leaves it in.

        ``start`` batches of pass ``number`` are read, and all passes before it.
        """
        del number, start  # the script's object is not touched


class ForwardSource(Source):
    """Passes that can only be read one after the other: what came before is read again.

    Args:
        name: the pipeline in the user's words.
        begin: returns the iterator of the next pass.
        array: makes an array of a leaf.
        batches: batches of one pass, None if not known.
        is_endless: whether a pass is known to have no end.
    """

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


def first_batches(source: ForwardSource, batches: int) -> ForwardSource:
    """Let passes of an endless ``source`` be its first batches, and return it."""
    begin = source.begin
    source.begin = lambda: itertools.islice(begin(), batches)
    source.batches, source.is_endless = batches, False
    return source


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


def generator_source(generator: Iterator[Any]) -> ForwardSource:
    """Return the source of a generator that is read until no more steps are wanted."""
    return ForwardSource(_GENERATOR, lambda: generator, as_array, is_endless=True)


def validation_source(generator: Iterator[Any], steps: int) -> ForwardSource:
    """Return the source of a generator whose validations have so many batches each.

    Keras looks at the first two batches, and each validation begins with them again.  Then it
    goes on in the generator.
    """
    first: list[Any] = []

    def begin() -> Iterator[Any]:
        first.extend(itertools.islice(generator, _LOOKED_AT - len(first)))
        return itertools.islice(itertools.chain(first, generator), steps)

    return ForwardSource(_GENERATOR, begin, as_array, batches=steps)


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


class ListSource(Source):
    """The batches of a generator that ends, kept in memory: there is one pass."""

    name = _GENERATOR
    advice = ForwardSource.advice

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = list(elements)
        self.batches = len(self._elements)

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin the only pass at batch ``start``."""
        return start, iter(self._elements[start:] if number == 0 else ())


class Passes(Enum):
    """What ``fit`` makes passes for; that says when Keras tells a dataset of epochs."""

    IN_ORDER = "training, in the order of the batches"
    SHUFFLED = "training, each pass in an order of its own"
    VALIDATION = "validation"


class PyDatasetSource(Source):
    """Passes over a PyDataset.

    Args:
        dataset: the user's object; its methods are called in the order of plain ``fit``.
        seed: the run's.
        passes: what they are made for.
        steps: batches of an epoch, None for a whole pass.

    Raises:
        ProgramError: it has no batches.
    """

    advice = (
        "draw from np.random or random, which holdfast seeds for each batch, or from a "
        "generator that is made from the batch's number within __getitem__"
    )

    def __init__(self, dataset: Any, seed: int, passes: Passes, steps: int | None = None) -> None:
        self.name = f"the PyDataset {type(dataset).__name__}"
        self.dataset = dataset
        self._seed = seed
        self._passes = passes
        self.batches = dataset.num_batches
        if self.batches == 0:
            raise ProgramError(f"{self.name} has no batches: its __len__ returns 0")
        self.is_endless = self.batches is None
        self._steps = steps or self.batches
        is_shuffled = passes is Passes.SHUFFLED and self.batches is not None
        self._order = SampleOrder(seed, self.batches, self.batches, 1) if is_shuffled else None
        self.told = 0
        self._reads_model = _reads_model(dataset)

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number`` at the batch before ``start``, if that is of the same epoch."""
        calls = self.calls_before(number, start)
        if calls < self.told:
            raise ValueError(f"{self.name} cannot go back to batch {start} of pass {number}")
        is_within = start > 0 and self.calls_before(number, start - 1) == calls
        first = start - 1 if is_within and not self._reads_model else start
        return first, self._items(number, first)

    def leave(self, number: int, start: int) -> None:
        """Tell the dataset of all epochs that have begun and ended up to here."""
        calls = self.calls_before(number, start)
        is_between = start % self._steps == 0 if self._steps else start == 0
        if is_between:  # the calls before an epoch belong to it
            calls -= 2 if self._passes is Passes.VALIDATION else 1
        self.tell(calls)

    def calls_before(self, number: int, start: int) -> int:
        """Return how often Keras tells the dataset of epochs before it reads a batch.

        Training begins with an ``on_epoch_end``, because Keras resets what it reads.
        """
        if self._passes is Passes.VALIDATION:
            return len(_OF_A_VALIDATION) * number + 2
        epochs = 0
        if self._steps:
            epochs = number * -(-(self.batches or 0) // self._steps) + start // self._steps
        return 2 * epochs + 2

    def tell(self, calls: int) -> None:
        """Tell the dataset of epochs, until it was told so often in all."""
        for number in range(self.told, calls):
            self.told = number + 1
            method = _BEGINS if number % 2 else _ENDS
            if self._passes is Passes.VALIDATION:
                method = _OF_A_VALIDATION[number % len(_OF_A_VALIDATION)]
            with seeded(self._seed, _FOR_EPOCHS, number):
                getattr(self.dataset, method, lambda: None)()  # an old Sequence may have none

    def _items(self, number: int, start: int) -> Iterator[Any]:
        batches = self.dataset.num_batches
        if batches != self.batches:
            raise ProgramError(
                f"{self.name} had {self.batches} batches when fit() began, and has {batches} now: "
                "let all its epochs have one length"
            )
        order = None if self._order is None else self._order.batch(number)
        for within in itertools.count(start):
            if within == self.batches:
                return
            self.tell(self.calls_before(number, within))
            yield self._item(number, within, within if order is None else int(order[within]))

    def _item(self, number: int, within: int, index: int) -> Any:
        with seeded(self._seed, _FOR_ITEMS, number, within):
            return self.dataset[index]

    def first(self) -> WholeBatch:
        """Return the first batch before any epoch has begun, where Keras looks at its shapes."""
        index = 0 if self._order is None else int(self._order.batch(0)[0])
        return make_batch(0, self._item(0, 0, index), self.array)


def py_dataset_source(dataset: Any, seed: int, passes: Passes, steps: int | None = None) -> Source:
    """Return the source of a PyDataset; one with a generator of its own is only read on.

    Raises:
        ProgramError: it has no batches.
    """
    source = PyDatasetSource(dataset, seed, passes, steps)
    return source if source.first().digest == source.first().digest else forward(source)


def is_pipeline(x: object) -> bool:
    """Return whether ``x`` gives batches, and not samples."""
    kinds: list[type] = [GeneratorType]
    # A library that nobody has loaded has made no dataset.
    if tensorflow := sys.modules.get("tensorflow"):
        kinds.append(tensorflow.data.Dataset)
    if keras := sys.modules.get("keras"):
        kinds.append(keras.utils.PyDataset)
    return isinstance(x, tuple(kinds))


def changes_by_epochs(dataset: Any) -> bool:
    """Return whether a dataset has a method of its own that is called at an epoch's ends."""
    return any(
        not getattr(type(dataset), name).__module__.startswith("keras.")
        for name in (_ENDS, _BEGINS)
        if hasattr(dataset, name)
    )


def _reads_model(dataset: Any) -> bool:
    """Return whether batches may be read with a model, which another step has changed.

    A model may stand anywhere in what the dataset holds, and in what its methods name.  Where that
    is too much to look at, the answer is yes: then a batch is only not compared.
    """
    keras = sys.modules.get("keras")
    if keras is None:
        return False
    changing = keras.Layer, keras.Optimizer, keras.Variable
    pending: list[Any] = [dataset]
    seen: dict[int, Any] = {}
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, _NO_HOLDERS):
            continue
        if isinstance(each, changing) or len(seen) == _MOST_SEEN:
            return True
        seen[id(each)] = each
        pending += _held_by(each)
    return False


def _held_by(value: Any) -> list[Any]:
    """Return what an object of the script holds, and what its methods name, but at epochs."""
    kind = value if isinstance(value, type | FunctionType) else type(value)
    if str(kind.__module__).partition(".")[0] in _LIBRARIES:
        return []
    if isinstance(value, FunctionType):
        used = [value.__globals__.get(name) for name in _names_in(value.__code__)]
        return [*used, value.__closure__, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, type):
        named = [item for item in vars(value).items() if item[0] not in (_ENDS, _BEGINS)]
        return [*value.__bases__, *(held for _, held in named)]
    return gc.get_referents(value)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


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
