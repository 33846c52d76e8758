"""PyDatasets and generators, and the choice among all kinds of pipelines."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from holdfast.runtime.data.batch import make_batch
from holdfast.runtime.data.source import (
    ForwardSource,
    Passes,
    PyDatasetSource,
    Source,
    is_pipeline,
    py_dataset_source,
)
from holdfast.runtime.data.tf_source import source_of
from holdfast.runtime.errors import ProgramError

SEED, BATCHES = 7, 5


class Images:
    """As a PyDataset: batches of noise from the global generators, in an order of its own."""

    num_batches: int | None = BATCHES

    def __init__(self) -> None:
        self.order = np.arange(BATCHES)
        self.calls: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self.calls.append(index)
        noise = np.random.normal(size=(2, 3)) + random.random()
        return noise + self.order[index], np.full(2, index)

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)
        self.calls.append("end")


class Counting(Images):
    """Its noise comes from a generator that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        return self.random.normal(size=(2, 3)), np.full(2, index)


def digests(elements: Iterator[Any]) -> list[int]:
    return [make_batch(0, element).digest for element in elements]


def whole(source: Source, number: int) -> list[int]:
    return digests(source.open(number, 0)[1])


def test_batches_depend_on_the_run_the_pass_and_their_number_alone() -> None:
    np.random.seed(1)
    in_order = PyDatasetSource(Images(), SEED, Passes.IN_ORDER)
    passes = [whole(in_order, number) for number in range(3)]
    np.random.seed(2)
    other = PyDatasetSource(Images(), SEED, Passes.IN_ORDER)
    start, elements = other.open(2, 3)
    assert (start, digests(elements)) == (2, passes[2][2:])  # the one before is compared
    assert len({digest for found in passes for digest in found}) == 3 * BATCHES


def test_only_the_wanted_batches_are_read() -> None:
    images = Images()
    list(PyDatasetSource(images, SEED, Passes.IN_ORDER).open(2, 3)[1])
    assert images.calls == ["end", "end", "end", 2, 3, 4]  # 2 is compared


def test_shuffled_passes_hold_every_batch_once_in_other_orders() -> None:
    source = PyDatasetSource(Images(), SEED, Passes.SHUFFLED)
    orders = [[int(y[0]) for _, y in source.open(number, 0)[1]] for number in range(3)]
    assert [sorted(order) for order in orders] == [list(range(BATCHES))] * 3
    assert len({tuple(order) for order in orders}) > 1


def test_the_scripts_own_generators_are_not_disturbed() -> None:
    np.random.seed(5)
    random.seed(5)
    wanted = np.random.random(), random.random()
    np.random.seed(5)
    random.seed(5)
    whole(PyDatasetSource(Images(), SEED, Passes.SHUFFLED), 1)
    assert (np.random.random(), random.random()) == wanted


def test_dataset_with_a_generator_of_its_own_is_only_read_on() -> None:
    one, other = (py_dataset_source(Counting(), SEED, Passes.IN_ORDER) for _ in range(2))
    assert isinstance(one, ForwardSource)
    passes = [whole(one, number) for number in range(3)]
    assert whole(other, 2) == passes[2]
    assert passes[1] != passes[2]


def test_dataset_without_end_is_read_by_number() -> None:
    images = Images()
    images.num_batches = None
    images.order = np.arange(100)
    source = PyDatasetSource(images, SEED, Passes.SHUFFLED)
    assert source.is_endless
    start, elements = source.open(0, 50)
    assert (start, next(elements)[1].tolist()) == (49, [49, 49])  # to be compared


def test_dataset_is_left_as_if_this_worker_had_read() -> None:
    read, unread = Images(), Images()
    reader = PyDatasetSource(read, SEED, Passes.IN_ORDER)
    for number in range(2):
        whole(reader, number)
    reader.leave(2, 0)
    PyDatasetSource(unread, SEED, Passes.IN_ORDER).leave(2, 0)
    assert read.order.tolist() == unread.order.tolist() != list(range(BATCHES))


def test_dataset_without_batches_is_named() -> None:
    images = Images()
    images.num_batches = 0
    with pytest.raises(ProgramError, match=r"the PyDataset Images has no batches"):
        py_dataset_source(images, SEED, Passes.IN_ORDER)


def pairs(batches: int) -> Iterator[Any]:
    for number in range(batches):
        yield np.full((2, 1), number), np.zeros(2)


@pytest.mark.tensorflow
def test_each_kind_of_pipeline_finds_its_source() -> None:
    class Real(keras.utils.PyDataset):
        def __len__(self) -> int:
            return BATCHES

        def __getitem__(self, index: int) -> Any:
            return np.full((2, 1), index), np.zeros(2)

    told: list[str] = []

    def found(x: Any, steps: int | None = None) -> Source:
        assert is_pipeline(x)
        return source_of(x, SEED, passes=Passes.IN_ORDER, steps=steps, tell=told.append)

    numbers = tf.data.Dataset.range(12)
    assert found(Real()).batches == BATCHES
    assert found(numbers.batch(5)).batches == 3
    assert found(pairs(4)).batches == 4
    assert (found(pairs(4), 2).batches, found(pairs(4), 2).is_endless) == (None, True)
    assert not told
    counted = found(numbers.filter(lambda value: value % 3 > 0).batch(2))
    assert counted.batches == 4
    assert "one pass has counted 4" in told[0]
    assert len(whole(counted, 1)) == 4


class Miner:
    def __init__(self, held: Any) -> None:
        self.held = held


@pytest.mark.tensorflow
def test_batch_that_may_be_read_with_a_model_is_not_read_again() -> None:
    def first_read(held: Any) -> int:
        images = Images()
        images.calls = [held, {"paths": ["a.png"] * 10_000}]
        return PyDatasetSource(images, SEED, Passes.IN_ORDER).open(0, 3)[0]

    model = keras.Sequential([keras.layers.Dense(1)])
    inner = functools.partial(print, [Miner({"a": (model,)})])
    for held in (model, Miner(model), model.predict, lambda: model, inner, Miner(inner)):
        assert first_read(held) == 3
    for held in (Miner(np.zeros(9)), functools.partial(print, Images()), logging.getLogger()):
        assert first_read(held) == 2
    assert first_read([object() for _ in range(70_000)]) == 3  # too much to look at


@pytest.mark.tensorflow
def test_what_is_no_pipeline_is_named() -> None:
    assert not is_pipeline(np.zeros(3))
    for wrong, words in [(iter(()), "list_iterator|tuple_iterator"), (pairs(0), "no batch")]:
        with pytest.raises(ProgramError, match=words):
            source_of(wrong, SEED, passes=Passes.IN_ORDER, steps=None, tell=print)
