"""The speed of a training, from looks at its step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.run.live_line import Pace


def after(*looks: tuple[int, float]) -> Pace:
    pace = Pace()
    for step, now in looks:
        pace = pace.observe(step, now)
    return pace


@pytest.mark.parametrize(
    ("looks", "per_s"),
    [
        ([], 0.0),
        ([(5, 1.0)], 0.0),
        ([(5, 1.0), (15, 2.0)], 10.0),
        ([(5, 1.0), (5, 2.0), (25, 3.0)], 10.0),
        ([(5, 1.0), (15, 2.0), (15, 2.0)], 10.0),
        ([(5, 1.0), (15, 2.0), (3, 9.0)], 10.0),  # a relaunch: as fast as before, so far
        ([(5, 1.0), (15, 2.0), (3, 9.0), (13, 10.0)], 10.0),
        ([(5, 9.0), (15, 2.0)], 0.0),
    ],
)
def test_pace(looks: list[tuple[int, float]], per_s: float) -> None:
    assert after(*looks).per_s == pytest.approx(per_s)


def test_pace_follows_a_training_that_has_become_slower() -> None:
    looks = [(10 * second, float(second)) for second in range(10)]
    looks += [(90 + second, 9.0 + second) for second in range(1, 41)]

    assert after(*looks).per_s == pytest.approx(1.0, abs=0.2)


def test_time_of_so_many_steps() -> None:
    assert after((0, 0.0), (20, 2.0)).seconds_for(100) == pytest.approx(10.0)
    assert Pace().seconds_for(100) is None


def test_look_after_the_memory_counts_most_of_the_pace() -> None:
    """A look that is ten seconds old counts 1/e of a new one."""
    slower = after((0, 0.0), (10, 1.0), (20, 11.0))

    assert slower.per_s == pytest.approx(1.0 + 9.0 / math.e)


def test_time_in_which_no_step_came_counts_for_the_next_one() -> None:
    stalled = after((0, 0.0), (10, 1.0), (10, 6.0), (11, 11.0))
    steady = after((0, 0.0), (10, 1.0), (11, 11.0))

    assert stalled == steady


def test_clock_of_another_boot_begins_a_new_count_at_the_old_pace() -> None:
    pace = after((0, 100.0), (10, 101.0), (20, 5.0))

    assert pace.per_s == 10.0
    assert pace.observe(21, 6.0).per_s < 10.0


_LOOKS = st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 20.0)), min_size=2, max_size=10)


@given(_LOOKS)
def test_pace_lies_between_the_slowest_and_the_fastest_look(
    looks: list[tuple[int, float]],
) -> None:
    step, now, pace = 0, 0.0, Pace().observe(0, 0.0)
    measured = []
    for steps, seconds in looks:
        measured.append(steps / ((now + seconds) - now))
        step, now = step + steps, now + seconds
        pace = pace.observe(step, now)

    assert min(measured) * (1 - 1e-9) <= pace.per_s <= max(measured) * (1 + 1e-9)
