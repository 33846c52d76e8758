"""The speed of a training, from looks at its step."""

from __future__ import annotations

import pytest

from holdfast.runtime.progress.pace import Pace


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
