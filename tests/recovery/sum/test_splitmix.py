from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.order import GOLDEN_GAMMA, WORD, chain, splitmix64, splitmix64_inplace

words = st.integers(0, WORD - 1)


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


def test_hash_of_zero_never_changes() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF


@given(st.lists(words, max_size=50))
def test_array_hash_equals_hash_of_each_integer(values: list[int]) -> None:
    array = np.array(values, dtype=np.uint64)

    hashed = splitmix64_inplace(array)

    assert hashed is array
    assert hashed.tolist() == [splitmix64(value) for value in values]


def test_integers_outside_64_bits_count_modulo_their_range() -> None:
    assert splitmix64(-1) == splitmix64(WORD - 1)
    assert splitmix64(WORD + 5) == splitmix64(5)


def test_chain_never_changes() -> None:
    assert chain(1, 2, 3) == 15020427595393229491


def test_chain_depends_on_the_order_of_its_parts() -> None:
    assert chain(1, 2, 3) != chain(3, 2, 1)
