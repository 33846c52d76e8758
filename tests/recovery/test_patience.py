"""A step that cannot be read is waited for, for a bounded time, and never called damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.patience import Finding, Patience, Tries, Verdict

FINE, TRANSIENT, UNREADABLE, DAMAGED = Finding
FIRST = Tries(1, 0.0)
LAST = Tries(3, 180.0)

findings = st.lists(st.sampled_from(Finding), min_size=1, max_size=6)
patiences = st.builds(
    Patience,
    whole_s=st.floats(0, 1000),
    first_nap_s=st.floats(0.01, 5),
    longest_nap_s=st.floats(5, 60),
    least_tries=st.integers(1, 6),
)
tried = st.builds(Tries, st.integers(1, 5000), st.floats(0, 2000), st.booleans())


@pytest.mark.parametrize(
    ("found", "tries", "verdict"),
    [
        ([FINE, FINE], FIRST, Verdict.TAKE),
        ([FINE, TRANSIENT], FIRST, Verdict.AGAIN),
        ([TRANSIENT], Tries(2, 179.9), Verdict.AGAIN),
        ([TRANSIENT], Tries(2, 500.0), Verdict.AGAIN),  # an older step has some tries, too
        ([TRANSIENT], LAST, Verdict.OLDER),
        ([TRANSIENT], Tries(2, 1.0, is_stop_wanted=True), Verdict.STOP),
        ([FINE], Tries(2, 1.0, is_stop_wanted=True), Verdict.TAKE),
        ([TRANSIENT], Tries(3, 180.0, is_stop_wanted=True), Verdict.OLDER),
        ([TRANSIENT, UNREADABLE], FIRST, Verdict.OLDER),
        ([TRANSIENT, DAMAGED], FIRST, Verdict.OLDER),
    ],
)
def test_table_of_verdicts(found: list[Finding], tries: Tries, verdict: Verdict) -> None:
    assert Patience().verdict(found, tries) is verdict


def test_naps_grow_to_the_longest_and_end_with_the_time() -> None:
    patience, spent_s, naps = Patience(), 0.0, []
    while (nap_s := patience.nap_s(Tries(len(naps) + 1, spent_s))) is not None:
        naps.append(nap_s)
        spent_s += nap_s

    assert naps[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert spent_s == 180.0


@given(patiences)
def test_every_wait_ends(patience: Patience) -> None:
    spent_s, count = 0.0, 1
    while (nap_s := patience.nap_s(Tries(count, spent_s))) is not None:
        assert 0 < nap_s <= patience.longest_nap_s
        spent_s, count = spent_s + nap_s, count + 1

    assert count >= patience.least_tries
    bound_s = patience.whole_s + patience.least_tries * patience.longest_nap_s
    assert spent_s <= bound_s


@given(patiences, findings, tried)
def test_verdict_depends_on_the_worst_finding_and_on_no_order(
    patience: Patience, found: list[Finding], tries: Tries
) -> None:
    verdict = patience.verdict(found, tries)

    assert verdict is patience.verdict(found[::-1], tries)
    assert verdict is patience.verdict([max(found)], tries)
    assert (verdict is Verdict.TAKE) == (max(found) is FINE)
    if verdict in (Verdict.AGAIN, Verdict.STOP):
        assert max(found) is TRANSIENT
