"""Uses close to their limit are told once."""

from __future__ import annotations

import pytest

from holdfast.runtime.host.host_watch import Fullness
from holdfast.runtime.system.usage import Resource, Usage


def files(used: int, place: str = "worker 1") -> Usage:
    return Usage(Resource.FILES, place, used, 100)


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ([10, 50, 90], []),
        ([91], [91]),
        ([91, 95, 100, 85, 99], [91]),
        ([91, 79, 92], [91, 92]),
        ([91, 80, 92], [91]),
        ([100, 0, 100, 0], [100, 100]),
    ],
)
def test_use_is_told_above_90_percent_and_again_after_it_was_below_80(
    uses: list[int], told: list[int]
) -> None:
    fullness, news = Fullness(), []
    for used in uses:
        fullness = fullness.observe([files(used)])
        news += [usage.used for usage in fullness.news]

    assert news == told


def test_each_place_is_told_by_itself() -> None:
    fullness = Fullness().observe([files(95), files(10, "worker 2")])
    fullness = fullness.observe([files(95), files(96, "worker 2")])

    assert fullness.news == (files(96, "worker 2"),)


def test_place_that_is_not_looked_at_for_once_is_not_told_again() -> None:
    fullness = Fullness().observe([files(95)]).observe([]).observe([files(95)])

    assert fullness.news == ()
