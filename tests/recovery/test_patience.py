"""A step that cannot be read is waited for, for a bounded time, and never called damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.training.restoring import Patience, ReadFinding

patiences = st.builds(
    Patience,
    whole_s=st.floats(0, 1000),
    first_nap_s=st.floats(0.01, 5),
    longest_nap_s=st.floats(5, 60),
    least_tries=st.integers(1, 6),
)


@pytest.mark.parametrize(
    ("worst", "tries", "spent_s", "nap_s"),
    [
        (ReadFinding.TRANSIENT, 1, 0.0, 0.5),
        (ReadFinding.TRANSIENT, 2, 179.9, 0.5),
        (ReadFinding.TRANSIENT, 2, 500.0, 1.0),  # an older step has some tries, too
        (ReadFinding.TRANSIENT, 3, 180.0, None),
        (ReadFinding.UNREADABLE, 1, 0.0, None),
        (ReadFinding.DAMAGED, 1, 0.0, None),
    ],
)
def test_table_of_naps(worst: ReadFinding, tries: int, spent_s: float, nap_s: float | None) -> None:
    assert Patience().nap_s(worst, tries, spent_s) == nap_s


def test_naps_grow_to_the_longest_and_end_with_the_time() -> None:
    spent_s, naps = 0.0, list[float]()
    while nap_s := Patience().nap_s(ReadFinding.TRANSIENT, len(naps) + 1, spent_s):
        naps.append(nap_s)
        spent_s += nap_s

    assert naps[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert spent_s == 180.0


@given(patiences)
def test_every_wait_ends(patience: Patience) -> None:
    spent_s, count = 0.0, 1
    while nap_s := patience.nap_s(ReadFinding.TRANSIENT, count, spent_s):
        assert 0 < nap_s <= patience.longest_nap_s
        spent_s, count = spent_s + nap_s, count + 1

    assert count >= patience.least_tries
    assert spent_s <= patience.whole_s + patience.least_tries * patience.longest_nap_s
