"""holdfast's own figures of an epoch tell of the world, the launch, and of where the time went."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.callbacks.run_figures import RunFigures
from holdfast.runtime.system.timeline import KINDS, Activity

WORLD = World(3, (WorkerId(0), WorkerId(1)), 2)
ALWAYS = {"workers": 2, "generation": 3, "relaunches": 1}


class Page:
    """The sums of a worker's time, in nanoseconds."""

    def __init__(self) -> None:
        self.sums = [0] * KINDS

    @property
    def spent_ns(self) -> tuple[int, ...]:
        return tuple(self.sums)

    def spend(self, activity: Activity, seconds: float) -> None:
        self.sums[activity] += int(seconds * 1e9)


@pytest.fixture
def page() -> Page:
    return Page()


def figures(page: Page, *moments: float) -> RunFigures:
    clock: Iterator[float] = iter(moments)
    history = FailureHistory(failures=1)
    return RunFigures(page, history, lambda: WORLD, lambda: next(clock))  # type: ignore[arg-type]


def test_epoch_has_its_speed_and_the_shares_of_its_time(page: Page) -> None:
    page.spend(Activity.WAIT, 100)
    told = figures(page, 10, 14, 16)
    told.work(0)
    for activity in (Activity.WAIT, Activity.EXCHANGE, Activity.COMPILE, Activity.COPY):
        page.spend(activity, 0.5)
    page.spend(Activity.REPAIR, 1)

    first, second = told.end_epoch(80), told.end_epoch(80)

    shares = {"share_waiting": 0.25, "share_starting": 0.375, "share_saving": 0.125}
    assert first == {**ALWAYS, "samples_per_second": 20, **shares}
    assert second == {**ALWAYS, "samples_per_second": 40, **dict.fromkeys(shares, 0)}


def test_launch_that_goes_on_within_an_epoch_counts_the_samples_of_its_own(page: Page) -> None:
    told = figures(page, 0, 5)
    told.work(30)
    told.work(60)

    assert told.end_epoch(80)["samples_per_second"] == 10


@pytest.mark.parametrize("begins", [True, False], ids=["only its validation", "only its hooks"])
def test_launch_that_has_trained_nothing_of_an_epoch_tells_no_speed(
    page: Page, *, begins: bool
) -> None:
    told = figures(page, 1, 2)
    if begins:
        told.work(80)

    assert told.end_epoch(80) == ALWAYS
