"""A time in which the whole job stood still, told from one in which its agent alone was away."""

from __future__ import annotations

import pytest

from holdfast.recovery.detector import Pause, PauseWatch
from holdfast.recovery.world import WorkerId

BEAT_S = 0.5


@pytest.mark.parametrize(
    ("gap_s", "beats", "pause"),
    [
        pytest.param(66.0, {0: 0, 1: 0}, Pause(100.0, 166.0), id="nobody ran"),
        pytest.param(66.0, {0: 2, 1: 12}, Pause(100.0, 166.0), id="workers woke seconds before"),
        pytest.param(66.0, {0: 0, 1: 130}, None, id="one worker ran"),
        pytest.param(66.0, {}, Pause(100.0, 166.0), id="there is no worker"),
        pytest.param(4.9, {0: 0, 1: 0}, None, id="too short for a word"),
    ],
)
def test_job_stood_still_if_no_worker_has_counted_on(
    gap_s: float, beats: dict[int, int], pause: Pause | None
) -> None:
    before = {WorkerId(worker): 1000 for worker in beats}
    after = {WorkerId(worker): 1000 + count for worker, count in beats.items()}
    watch = PauseWatch(BEAT_S).observe(before, 100.0)

    assert watch.pause is None
    watch = watch.observe(after, 100.0 + gap_s)
    assert watch.pause == pause
    assert watch.observe(after, 100.5 + gap_s).pause is None


def test_worker_that_is_new_says_nothing_of_the_time_before() -> None:
    watch = PauseWatch(BEAT_S).observe({}, 0.0).observe({WorkerId(3): 900}, 20.0)

    assert watch.pause == Pause(0.0, 20.0)


def test_two_observers_of_one_pause_have_seen_the_same_time() -> None:
    seen = Pause(100.0, 166.0)

    assert seen.overlaps(Pause(100.3, 167.0))
    assert seen.overlaps(Pause(99.0, 165.0))
    assert not seen.overlaps(Pause(170.0, 190.0))
    assert seen.seconds == 66.0
