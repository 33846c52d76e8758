"""The number of shards follows from the size of the state alone, unless the user names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.saving.saver import (
    LARGEST_FILE_BYTES,
    MOST_THREADS,
    WORTH_A_FILE_BYTES,
    shard_count,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, 1),
        (1, 1),
        (64 * MIB, 1),
        (64 * MIB + 1, 2),
        (256 * MIB, 4),
        (16 * 1024 * MIB, 4),
        (16 * 1024 * MIB + 1, 5),
        (100 * 1024 * MIB, 25),
    ],
)
def test_larger_state_has_more_shards(nbytes: int, expected: int) -> None:
    assert shard_count(nbytes) == expected


@given(st.integers(0, 2**45))
def test_file_is_worth_its_name_and_never_too_large(nbytes: int) -> None:
    count = shard_count(nbytes)

    assert count >= 1
    assert nbytes / count <= LARGEST_FILE_BYTES
    if count > 1:
        assert nbytes / count > WORTH_A_FILE_BYTES / 2
    if count > MOST_THREADS:
        assert nbytes / (count - 1) > LARGEST_FILE_BYTES


@given(st.integers(0, 2**45), st.integers(1, 1000))
def test_user_has_the_last_word(nbytes: int, asked: int) -> None:
    assert shard_count(nbytes, asked) == asked
