"""The samples of each microbatch, and the hash that they come from."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.order import (
    GOLDEN_GAMMA,
    WORD,
    SampleOrder,
    chain,
    splitmix64,
    splitmix64_inplace,
)

seeds = st.integers(0, 2**64 - 1)
counts = st.integers(1, 80)

words = st.integers(0, WORD - 1)


def test_order_never_changes() -> None:
    """A job that is resumed with a newer holdfast must visit the same samples."""
    order = SampleOrder(7, 10, 4, 3)

    batches = [order.batch(index).tolist() for index in range(6)]

    assert batches == [[2, 0, 7, 6], [4, 5, 3, 1], [8, 9], [6, 3, 8, 1], [9, 4, 2, 7], [0, 5]]


def test_large_order_never_changes() -> None:
    order = SampleOrder(2**64 - 1, 100_000, 100_000, 1)

    digest = hashlib.sha256(order.batch(3).astype("<i8").tobytes()).hexdigest()

    assert digest == "036e8285b67382c90c535c8e9bfcfcfae90ba5a40534869a23084a6d4a643202"


def test_microbatch_seeds_never_change() -> None:
    order = SampleOrder(7, 10, 4, 3)

    found = [order.microbatch_seed(index, m) for index in (0, 1) for m in (0, 1)]

    assert found == [
        4034621176940806385,
        4758139822752690434,
        3303536389818849154,
        2720549675734664960,
    ]


@given(seeds, st.integers(1, 40), st.integers(0, 3))
def test_epoch_is_sorted_by_hashed_keys(seed: int, samples: int, epoch: int) -> None:
    """The order in plain Python: no sorting algorithm or array library has a say in it."""
    order = SampleOrder(seed, samples, samples, 1)
    base = 0
    for part in (1, seed, epoch):
        base = splitmix64(base ^ part)

    def key(sample: int) -> int:
        return splitmix64(base + sample * 0x9E3779B97F4A7C15)

    assert order.batch(epoch).tolist() == sorted(range(samples), key=key)


@given(seeds, counts, counts, counts, st.integers(0, 3))
def test_every_epoch_visits_every_sample_once(
    seed: int, samples: int, global_batch: int, microbatches: int, epoch: int
) -> None:
    order = SampleOrder(seed, samples, global_batch, microbatches)
    first = epoch * order.steps_per_epoch

    visited = [
        sample
        for index in range(first, first + order.steps_per_epoch)
        for m in range(microbatches)
        for sample in order.microbatch(index, m).tolist()
    ]

    assert sorted(visited) == list(range(samples))
    assert {order.epoch_of(first), order.epoch_of(first + order.steps_per_epoch - 1)} == {epoch}


@given(seeds, counts, counts, counts, st.integers(0, 200))
def test_microbatches_cut_the_batch_like_array_split(
    seed: int, samples: int, global_batch: int, microbatches: int, index: int
) -> None:
    order = SampleOrder(seed, samples, global_batch, microbatches)

    parts = [order.microbatch(index, m) for m in range(microbatches)]

    expected = np.array_split(order.batch(index), microbatches)
    assert [part.tolist() for part in parts] == [part.tolist() for part in expected]
    assert {part.dtype for part in parts} == {np.dtype(np.int64)}


@given(counts, counts, counts)
def test_sequential_order_visits_samples_in_their_own_order(
    samples: int, global_batch: int, microbatches: int
) -> None:
    order = SampleOrder(0, samples, global_batch, microbatches, is_shuffled=False)

    visited = [
        sample
        for index in range(order.steps_per_epoch)
        for m in range(microbatches)
        for sample in order.microbatch(index, m).tolist()
    ]

    assert visited == list(range(samples))


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_counts_below_one_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must each be at least 1"):
        SampleOrder(0, *counts)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"below 2\*\*64"):
        SampleOrder(seed, 1, 1, 1)


@pytest.mark.parametrize(("index", "m"), [(0, -1), (0, 3), (-1, 0)])
def test_microbatch_that_does_not_exist_is_refused(index: int, m: int) -> None:
    order = SampleOrder(0, 10, 4, 3)

    with pytest.raises(ValueError, match="there is no microbatch"):
        order.microbatch(index, m)
    with pytest.raises(ValueError, match="there is no microbatch"):
        order.microbatch_seed(index, m)


def test_outputs_are_those_of_the_published_generator() -> None:
    """The first outputs of the reference implementation for the seed 1234567."""
    states = [1234567 + position * GOLDEN_GAMMA for position in range(5)]

    outputs = [splitmix64(state) for state in states]

    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(words, max_size=50))
def test_array_hash_equals_hash_of_each_integer(values: list[int]) -> None:
    array = np.array(values, dtype=np.uint64)

    hashed = splitmix64_inplace(array)

    assert hashed is array
    assert hashed.tolist() == [splitmix64(value) for value in values]


@given(st.lists(st.integers(0, WORD - 1), min_size=1, max_size=5), st.integers(0, WORD - 1))
def test_chain_of_more_parts_is_another_one(parts: list[int], more: int) -> None:
    assert chain(*parts, more) == splitmix64(chain(*parts) ^ more)
    assert 0 <= chain(*parts) < WORD
