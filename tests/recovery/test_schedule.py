"""When a checkpoint is due by a schedule."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.recovery.errors import WrongText
from holdfast.recovery.schedule import (
    LARGEST_BYTES_PER_S,
    LARGEST_COURTESY,
    LARGEST_DUTY,
    LARGEST_SHARE,
    LEAST_COST_S,
    PRIOR_S,
    UNNOTICED_SHARE,
    Auto,
    EachEpoch,
    EverySeconds,
    EverySteps,
    FailureHistory,
    Schedule,
    Writing,
    auto_interval_s,
    best_interval_s,
    interval_s,
    parse_schedule,
)

_COSTS = st.floats(0, 1e4)
_MEANS = st.floats(1, 1e8)

_WRITINGS = st.builds(Writing, st.floats(0, 1e5), st.integers(0, 10**14))
_HISTORIES = st.builds(FailureHistory, st.floats(0, 1e8), st.integers(0, 10_000))


@pytest.mark.parametrize(
    ("value", "schedule"),
    [
        (1, EverySteps(1)),
        (100, EverySteps(100)),
        ("100", EverySteps(100)),
        ("90s", EverySeconds(90.0)),
        ("0.5s", EverySeconds(0.5)),
        ("10min", EverySeconds(600.0)),
        ("10 min", EverySeconds(600.0)),
        (" 2H ", EverySeconds(7200.0)),
        ("1d", EverySeconds(86400.0)),
        ("250ms", EverySeconds(0.25)),
        ("1:30:00", EverySeconds(5400.0)),
        ("epoch", EachEpoch()),
        ("auto", Auto()),
        ("AUTO", Auto()),
    ],
)
def test_schedule_is_understood(value: object, schedule: Schedule) -> None:
    assert parse_schedule(value) == schedule


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "at least 1, got 0"),
        (-3, "at least 1, got -3"),
        ("0", "at least 1, got 0"),
        ("-3", "at least 1, got -3"),
        ("0s", "must be positive, got '0s'"),
        ("10m", "'10m' is not a valid time to save"),
        ("10 weeks", "'10 weeks' is not a valid time to save"),
        ("", "'' is not a valid time to save"),
        ("often", "'often' is not a valid time to save"),
        ("-5s", "'-5s' is not a valid time to save"),
        ("1e3s", "'1e3s' is not a valid time to save"),
        (2.5, "2.5 is not a valid time to save"),
        (True, "True is not a valid time to save"),
        (None, "None is not a valid time to save"),
        (b"auto", "b'auto' is not a valid time to save"),
        ("9" * 400 + "s", "must be positive"),
        ("9" * 400 + ":00", "is not a valid time to save"),
        ("9" * 5000, "is not a valid time to save"),
    ],
)
def test_nonsense_is_refused_with_what_would_do(value: object, words: str) -> None:
    with pytest.raises(WrongText) as caught:
        parse_schedule(value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("cost_s", "mean_s", "interval"),
    [
        (1.0, 86400.0, 415.69),  # Young: sqrt(2 * 1 * 86400)
        (0.5, 3600.0, 60.0),
        (60.0, 86400.0, 3219.94),
        (60.0, 3600.0, 1714.29),  # sqrt(2 C M) = 657 s would be 9 % of the time
        (0.0, 86400.0, 10.0),  # as for a cost of 10 ms; Young's 41.57 s saves 0.08 %
    ],
)
def test_interval_is_youngs_until_the_cap(cost_s: float, mean_s: float, interval: float) -> None:
    assert best_interval_s(cost_s, mean_s) == pytest.approx(interval, abs=0.01)


@given(_COSTS, _MEANS, st.floats(1, 1e9))
def test_no_interval_that_keeps_the_share_loses_less_by_more_than_nobody_notices(
    cost_s: float, mean_s: float, other: float
) -> None:
    cost_s = max(cost_s, LEAST_COST_S)
    assume(cost_s <= LARGEST_SHARE * other)

    def lost(interval: float) -> float:
        return cost_s / interval + interval / (2 * mean_s)

    assert lost(best_interval_s(cost_s, mean_s)) <= lost(other) * (1 + 1e-9) + UNNOTICED_SHARE


@given(_COSTS, _MEANS)
def test_first_failure_costs_at_most_the_training_that_saves_may_take_unnoticed(
    cost_s: float, mean_s: float
) -> None:
    longest = max(cost_s, LEAST_COST_S) / UNNOTICED_SHARE
    assert best_interval_s(cost_s, mean_s) <= longest * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "failures", "mean_s"),
    [
        (0.0, 0, PRIOR_S),
        (60.0, 0, PRIOR_S + 60),
        (60.0, 1, (60 + PRIOR_S / 10) / 1.1),
        (3600.0, 3, (3600 + PRIOR_S / 10) / 3.1),
        (100 * PRIOR_S, 100, PRIOR_S),
    ],
)
def test_prior_gives_way_to_what_is_seen(seconds: float, failures: int, mean_s: float) -> None:
    history = FailureHistory(seconds, failures)

    assert history.mean_time_between_failures_s == pytest.approx(mean_s)


@given(_COSTS, _HISTORIES, _WRITINGS)
def test_disks_are_left_to_others_unless_the_job_fails_too_often(
    cost_s: float, history: FailureHistory, writing: Writing
) -> None:
    found = auto_interval_s(cost_s, history, writing)

    rarely = found >= LARGEST_COURTESY * history.mean_time_between_failures_s
    assert rarely or writing.seconds <= LARGEST_DUTY * found * (1 + 1e-9)
    assert rarely or writing.nbytes <= LARGEST_BYTES_PER_S * found * (1 + 1e-9)


@given(_COSTS, _HISTORIES, _WRITINGS)
def test_courtesy_makes_saves_rarer_and_never_stops_a_job_from_coming_on(
    cost_s: float, history: FailureHistory, writing: Writing
) -> None:
    mean_s = history.mean_time_between_failures_s
    best = best_interval_s(cost_s, mean_s)

    found = auto_interval_s(cost_s, history, writing)

    assert best <= found <= max(best, LARGEST_COURTESY * mean_s)


@pytest.mark.parametrize(
    ("writing", "interval"),
    [
        (Writing(), 10.0),
        (Writing(0.5, 200_000_000), 10.0),
        (Writing(20.0, 10**9), 200.0),
        (Writing(20.0, 10**11), 1000.0),
        (Writing(0.0, 10**14), PRIOR_S / 4),
    ],
)
def test_huge_state_is_not_written_every_ten_seconds(writing: Writing, interval: float) -> None:
    """Its saves cost training nothing, as snapshots are written by another process."""
    found = interval_s(Auto(), (0.0,), FailureHistory(), writing)

    assert found == pytest.approx(interval)
