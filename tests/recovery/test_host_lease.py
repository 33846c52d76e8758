"""The lease of a host: whatever is cut, and however clocks run, the lost side is dead first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.detector import LEASE_SHARE, HostLease, HostPings

T = 10.0


def test_lease_lasts_from_the_sending_of_an_answer_that_was_heard() -> None:
    lease = HostLease.begin(T, 0.0).answered(1, 1.0).answered(2, 5.0)

    assert lease.until == LEASE_SHARE * T
    assert lease.confirmed(1).until == 1.0 + LEASE_SHARE * T
    assert lease.confirmed(2).until == 5.0 + LEASE_SHARE * T
    assert lease.confirmed(2).confirmed(1).until == 5.0 + LEASE_SHARE * T
    assert lease.confirmed(7).until == LEASE_SHARE * T  # an answer that was never sent


def test_lease_ends_at_its_moment() -> None:
    lease = HostLease.begin(T, 100.0)

    assert not lease.has_ended(107.9)
    assert lease.has_ended(108.0)


def test_host_is_lost_when_it_has_been_silent_for_longer_than_the_timeout() -> None:
    pings = HostPings(T, 0.0)
    for second in range(1, 11):
        pings = pings.polled(float(second))
    assert not pings.is_lost

    assert pings.polled(10.5).is_lost
    assert not pings.answered(1).polled(10.5).is_lost


def test_head_that_stood_still_accuses_nobody() -> None:
    pings = HostPings(T, 0.0).polled(1.0)

    assert not pings.polled(1000.0).is_lost


def test_pings_come_ten_times_in_a_timeout_and_at_once_after_a_silence() -> None:
    pings = HostPings(T, 0.0)
    assert pings.is_ping_due

    pings = pings.pinged()
    assert not pings.polled(0.9).is_ping_due
    assert pings.polled(1.0).is_ping_due
    assert not pings.polled(0.9).answered(1).is_ping_due
    assert pings.polled(2.0).polled(2.5).pinged().answered(1).is_ping_due


@given(
    seed=st.integers(0, 1 << 32),
    rate=st.floats(0.9, 1.1),
    cut_at=st.floats(0.0, 60.0),
    cut=st.sampled_from(["deaf", "mute", "deaf and mute"]),
)
def test_lost_side_is_dead_first_in_whatever_direction_a_link_is_cut(
    seed: int, rate: float, cut_at: float, cut: str
) -> None:
    deaf, mute = "deaf" in cut, "mute" in cut
    ended, given_up = _cut(random.Random(seed), rate, cut_at, deaf=deaf, mute=mute)

    assert ended < given_up


def _cut(
    choose: random.Random, rate: float, cut_at: float, *, deaf: bool, mute: bool
) -> tuple[float, float]:
    """Return when a host has ended its workers, and when the head gave it up.

    The host's clock runs at ``rate`` of the head's.  From ``cut_at`` on nothing reaches the host,
    or nothing that it sends arrives.  Messages take up to 0.3 s otherwise.
    """
    step_s = 0.05
    pings, lease = HostPings(T, 0.0), HostLease.begin(T, 0.0)
    to_host: list[tuple[float, int, int]] = []
    to_head: list[tuple[float, int]] = []
    ended = given_up = float("inf")
    now = 0.0
    while given_up == float("inf"):
        now += step_s
        pings = pings.polled(now)
        if pings.is_lost:
            given_up = now
        elif pings.is_ping_due:
            pings = pings.pinged()
            if not (deaf and now >= cut_at):
                to_host.append((now + choose.uniform(0.0, 0.3), pings.sent, pings.heard))
        for arrival in [found for found in to_host if found[0] <= now]:
            to_host.remove(arrival)
            if ended < float("inf"):
                continue
            lease = lease.confirmed(arrival[2]).answered(arrival[1], now * rate)
            if not (mute and now >= cut_at):
                to_head.append((now + choose.uniform(0.0, 0.3), arrival[1]))
        for answer in [found for found in to_head if found[0] <= now]:
            to_head.remove(answer)
            pings = pings.answered(answer[1])
        if lease.has_ended(now * rate):
            ended = min(ended, now)
        if now > 200.0:
            pytest.fail("the head has never given the host up")
    return ended, given_up
