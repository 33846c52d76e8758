"""Which growth is told, when, and how often."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.host.memory_forecast import LEVELS_S, WORTH_A_LOOK, Forecast

LIMIT = 1000.0
LOOK_S = 2.0

Use = Callable[[float], float]
"""The use at a time in seconds."""


def watch(use: Use, seconds: float, limit: float = LIMIT) -> Iterator[tuple[float, Forecast]]:
    """Look every two seconds until the limit is met; yield each time and forecast."""
    forecast = Forecast()
    for look in range(int(seconds / LOOK_S)):
        now = look * LOOK_S
        if use(now) >= limit:
            return
        forecast = forecast.observe(use(now), limit, now)
        yield now, forecast


def told(use: Use, seconds: float, limit: float = LIMIT) -> list[tuple[float, float]]:
    """Return when something was told, and the time to the limit that was told."""
    return [
        (now, forecast.growth.left_s)
        for now, forecast in watch(use, seconds, limit)
        if forecast.is_news and forecast.growth
    ]


def line(per_s: float, start: float = 500.0) -> Use:
    return lambda now: start + per_s * now


def saw(now: float) -> float:
    """Swing between 600 and 950, once in two minutes."""
    return 600 + 350 * (now % 120) / 120


QUIET: dict[str, Use] = {
    "constant": lambda _: 990.0,
    "falling": lambda now: 990 - now / 4,
    "far from the limit": lambda now: 100 + min(now / 4, 400),
    "a jump": lambda now: 650.0 if now < 61 else 950.0,
    "two jumps": lambda now: 620.0 if now < 40 else 800.0 if now < 47 else 960.0,
    "growth that ends": lambda now: 650 + 50 * min(now, 10) / 10,
    "growth of 40 seconds": lambda now: 620 + 0.8 * min(now, 40),
    "hours away": line(0.001, start=900),
}


@pytest.mark.parametrize("name", QUIET)
def test_use_that_leads_nowhere_is_not_told(name: str) -> None:
    assert told(QUIET[name], 1800) == []


@pytest.mark.parametrize("seed", range(20))
def test_scatter_is_no_growth(seed: int) -> None:
    numbers = random.Random(seed)

    assert told(lambda _: 900 + numbers.gauss(0, 20), 3600) == []


def test_swing_is_told_at_most_on_its_first_way_up() -> None:
    """Nobody knows then that it turns back; afterwards its peak is known."""
    assert [now for now, _ in told(saw, 7200) if now > 120] == []


def test_leak_is_told_once_at_each_level_and_each_time_nearer() -> None:
    """500 are used of 1000, and one more each 2.4 seconds: 20 minutes."""
    use = line(1 / 2.4)

    news = told(use, 2000)

    assert [round(left_s) for _, left_s in news] == pytest.approx([900, 240, 60, 15], abs=3)
    for now, left_s in news:
        assert now + left_s == pytest.approx(1200, abs=5)


def test_fast_growth_is_told_within_half_a_minute() -> None:
    """It takes the 40 seconds from 600 to 1000; the first ones are needed to be sure."""
    (first, left_s), *_ = told(line(10, start=600), 60)

    assert first <= 16
    assert first + left_s == pytest.approx(40, abs=2)


def test_slow_growth_in_scatter_is_told_minutes_before() -> None:
    numbers = random.Random(1)
    use = line(0.1, start=700)

    news = told(lambda now: use(now) + numbers.gauss(0, 10), 3100)

    assert 240 <= 3000 - news[0][0] <= 1500


def test_growth_in_stairs_is_told() -> None:
    """Something is kept after each epoch of ten seconds."""
    assert told(lambda now: 620 + 20 * (now // 10), 200) != []


def test_what_turned_back_is_told_again_after_five_minutes_only() -> None:
    """A use that flickers about a level does not repeat its news."""

    def use(now: float) -> float:
        return 700 + 5 * (now % 50) + 0.02 * now

    times = [now for now, _ in told(use, 3000)]

    assert len(times) <= len(LEVELS_S) + 1


def test_second_leak_is_told_after_a_calm_time() -> None:
    def use(now: float) -> float:
        if now < 60:
            return 620 + 5 * now
        return 650.0 if now < 700 else 650 + 3 * (now - 700) + 280 * (now > 1e9)

    times = [now for now, _ in told(use, 800)]

    assert [now for now in times if now < 60] != []
    assert [now for now in times if now > 700] != []


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_gap_between_looks_does_not_matter(shift: float) -> None:
    """The agent was stopped for ten minutes, or the machine slept."""
    forecast = Forecast()
    for look in range(20):
        now = shift + look * LOOK_S + (600 if look > 10 else 0)
        forecast = forecast.observe(700.0, LIMIT, now)
        assert not forecast.is_news


@given(st.floats(2, 20), st.floats(500, 900), st.integers(0, 3))
def test_growth_to_the_limit_is_told_before_it(per_s: float, start: float, seed: int) -> None:
    """If the way above the mark takes 20 seconds; each level at most once."""
    numbers = random.Random(seed)
    use = line(per_s, start)
    left_above = (LIMIT - max(start, WORTH_A_LOOK * LIMIT)) / per_s

    news = told(lambda now: use(now) + numbers.uniform(-1, 1) * per_s / 10, 300)

    assert len(news) <= len(LEVELS_S)
    if left_above > 20:
        assert news != []
        for now, left_s in news:
            meets = (LIMIT - start) / per_s
            assert now + left_s == pytest.approx(meets, rel=0.15, abs=4)


@given(st.lists(st.floats(0, 599), min_size=1, max_size=60))
def test_nothing_is_told_below_the_mark(uses: list[float]) -> None:
    forecast = Forecast()
    for look, used in enumerate(uses):
        forecast = forecast.observe(used, LIMIT, look * LOOK_S)
        assert not forecast.is_news


@given(st.lists(st.floats(600, 1100), min_size=1, max_size=80), st.floats(0.1, 60))
def test_any_use_is_told_at_most_once_at_each_level_in_five_minutes(
    uses: list[float], every_s: float
) -> None:
    forecast = Forecast()
    news: list[float] = []
    for look, used in enumerate(uses):
        forecast = forecast.observe(used, LIMIT, look * every_s)
        if forecast.is_news:
            news.append(look * every_s)

    for at in news:
        assert sum(at <= other < at + 300 for other in news) <= len(LEVELS_S)
