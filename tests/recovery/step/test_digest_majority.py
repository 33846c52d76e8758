"""Who is named when digests differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.step import DigestComparison, compare_digests


@pytest.mark.parametrize(
    ("digests", "minority", "has_majority"),
    [
        ("a", (), True),
        ("aa", (), True),
        ("ab", (0, 1), False),
        ("aab", (2,), True),
        ("baa", (0,), True),
        ("abc", (0, 1, 2), False),
        ("aabb", (0, 1, 2, 3), False),
        ("aabc", (0, 1, 2, 3), False),
        ("abaca", (1, 3), True),
    ],
)
def test_more_than_half_are_right(
    digests: str,
    minority: tuple[int, ...],
    has_majority: bool,  # noqa: FBT001
) -> None:
    found = compare_digests([digest.encode() for digest in digests])

    assert found == DigestComparison(minority, has_majority)
    assert found.is_unanimous == (len(set(digests)) == 1)


@given(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=9))
def test_everyone_but_the_minority_agrees(digests: list[bytes]) -> None:
    found = compare_digests(digests)

    kept = [digest for rank, digest in enumerate(digests) if rank not in found.minority]
    assert len(set(kept)) == (1 if found.has_majority else 0)
    if found.has_majority:
        assert 2 * len(kept) > len(digests)
