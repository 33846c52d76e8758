"""Plans follow from a seed, and have the gaps and the variety that they should have."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.tools.strike import (
    DEFAULT_BLOWS,
    AtStep,
    AtTime,
    OnEvent,
    Strike,
    parse_strike,
    pick,
    strikes_by_count,
    strikes_by_mtbf,
)

BY_COUNT = [
    "stop+cont pool at step 10 for 3s",
    "stop mpiexec at step 82",
    "stop+cont worker #35 at step 67 for 3s",
    "stop+cont pool on world for 3s",
]
BY_MTBF = [
    "stop+cont pool at 1.05s for 3s",
    "stop mpiexec at 18.03s",
    "stop+cont worker #35 at 29.06s for 3s",
]


def _times(strikes: list[Strike]) -> list[float]:
    return [strike.moment.seconds for strike in strikes if isinstance(strike.moment, AtTime)]


def test_seed_has_these_strikes_for_ever() -> None:
    """A bad run is replayed by its seed, in later versions too."""
    assert [str(strike) for strike in strikes_by_count(7, 4, 100, DEFAULT_BLOWS)] == BY_COUNT
    assert [str(s) for s in islice(strikes_by_mtbf(7, 10.0, DEFAULT_BLOWS), 3)] == BY_MTBF


@given(st.integers(0, 2**64), st.integers(0, 8), st.integers(0, 1000))
def test_strikes_of_a_count_lie_in_the_run(seed: int, count: int, steps: int) -> None:
    strikes = strikes_by_count(seed, count, steps, DEFAULT_BLOWS)

    assert len(strikes) == count
    assert strikes == strikes_by_count(seed, count, steps, DEFAULT_BLOWS)
    moments = [strike.moment for strike in strikes]
    assert all(moment.step <= steps for moment in moments if isinstance(moment, AtStep))
    assert tuple(map(parse_strike, map(str, strikes))) == strikes


@pytest.mark.parametrize("mtbf_s", [0.5, 60.0])
def test_gaps_are_exponential(mtbf_s: float) -> None:
    """Mean and standard deviation of an exponential distribution are equal."""
    times = _times(list(islice(strikes_by_mtbf(11, mtbf_s, DEFAULT_BLOWS), 4000)))
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5

    assert min(gaps) >= 0
    assert mean == pytest.approx(mtbf_s, rel=0.05)
    assert deviation == pytest.approx(mtbf_s, rel=0.1)


def test_many_seeds_strike_every_target_in_every_way_and_at_every_sort_of_moment() -> None:
    strikes = [s for seed in range(400) for s in strikes_by_count(seed, 3, 100, DEFAULT_BLOWS)]

    assert {strike.blow for strike in strikes} == set(DEFAULT_BLOWS)
    assert {type(strike.moment) for strike in strikes} == {AtStep, OnEvent}


def test_pick_reaches_both_ends_and_nothing_else() -> None:
    assert {pick(seed, 0, 2, 6) for seed in range(200)} == {2, 3, 4, 5, 6}
