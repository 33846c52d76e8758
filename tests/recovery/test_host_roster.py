"""The hosts that take workers: who is counted on, who is tried again, and who is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.host_roster import (
    FIRST_TRY_AFTER_S,
    LONGEST_PAUSE_S,
    REMEMBERED_S,
    HostRoster,
)
from holdfast.recovery.placement import HostSlots

HOSTS = (HostSlots("a", 2), HostSlots("b", 2), HostSlots("c", 4))


def names(roster: HostRoster) -> str:
    return "".join(host.name for host in roster.takers)


def test_lost_host_takes_no_worker_until_it_is_back() -> None:
    roster = HostRoster(HOSTS, {})
    roster.due(0.0)
    assert not roster.answered("b")

    assert roster.lost("b", 10.0) == 1
    assert (names(roster), roster.missing) == ("ac", ("b",))
    assert roster.due(10.0) == ()
    assert roster.due(10.0 + FIRST_TRY_AFTER_S) == ("b",)
    assert names(roster) == "ac"

    assert roster.answered("b")
    assert (names(roster), roster.missing) == ("abc", ())


def test_failed_tries_are_no_losses_and_come_less_and_less_often() -> None:
    roster = HostRoster(HOSTS, {})
    roster.due(0.0)
    roster.lost("b", 0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        began = now
        while "b" not in roster.due(now):
            now += 1.0
        pauses.append(now - began)
        assert roster.lost("b", now) is None

    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_host_that_was_lost_twice_is_left_out() -> None:
    roster = HostRoster(HOSTS, {"c": 1})
    roster.due(0.0)
    roster.answered("c")

    assert roster.lost("c", 1.0) == 2
    assert "c" not in roster.due(REMEMBERED_S - 1.0)
    assert names(roster) == "ab"
    assert "c" in roster.due(REMEMBERED_S)


def test_losses_of_earlier_jobs_count_but_not_against_the_heads_own_host() -> None:
    roster = HostRoster(HOSTS, {"a": 9, "b": 2})

    assert roster.due(0.0) == ("c",)
    assert names(roster) == "ac"


def test_missing_hosts_are_tried_at_once_and_not_counted_on() -> None:
    roster = HostRoster(HOSTS, {"b": 1, "c": 2}, 5.0, ["b", "c"])

    assert names(roster) == "a"
    assert roster.due(5.0) == ("b",)
    assert roster.is_tried("b")
    assert roster.answered("b")
    assert names(roster) == "ab"
    assert roster.lost("b", 50.0) == 2


def test_losses_of_different_days_leave_no_host_out() -> None:
    roster = HostRoster(HOSTS, {})
    for day in range(4):
        now = day * REMEMBERED_S
        assert "b" in roster.due(now + FIRST_TRY_AFTER_S)
        roster.answered("b")
        assert roster.lost("b", now + 10.0) == 1


def test_loss_that_is_the_heads_own_fault_is_not_charged() -> None:
    roster = HostRoster(HOSTS, {})
    roster.due(0.0)
    for now in (10.0, 20.0, 30.0):
        assert roster.lost("b", now, is_charged=False) == 0
        assert roster.due(now + FIRST_TRY_AFTER_S) == ("b",)
        roster.answered("b")


def test_hosts_that_are_all_lost_within_a_moment_are_charged_nothing() -> None:
    roster = HostRoster(HOSTS, {})
    roster.due(0.0)
    for now in (10.0, 110.0, 210.0):
        roster.lost("b", now)
        roster.lost("c", now + 2.0)
        assert set(roster.due(now + 2.0 + FIRST_TRY_AFTER_S)) == {"b", "c"}
        roster.answered("b")
        roster.answered("c")


def test_forgiven_hosts_that_are_back_or_on_their_way_stay_so() -> None:
    hosts = (*HOSTS, HostSlots("d", 1))
    roster = HostRoster(hosts, {})
    roster.due(0.0)
    roster.lost("b", 10.0)
    roster.lost("c", 13.0)
    assert roster.due(10.0 + FIRST_TRY_AFTER_S) == ("b",)
    assert roster.answered("b")
    assert roster.due(13.0 + FIRST_TRY_AFTER_S) == ("c",)

    roster.lost("d", 20.0)

    assert names(roster) == "ab"
    assert roster.is_tried("c")
    assert roster.due(20.0 + FIRST_TRY_AFTER_S) == ("d",)
    assert roster.answered("c")
    assert names(roster) == "abc"


@given(
    st.lists(
        st.tuples(st.sampled_from((0.5, 6.0)), st.booleans(), st.sampled_from("bc")), max_size=60
    )
)
def test_host_is_started_only_when_it_is_gone_and_takes_workers_only_when_it_answers(
    events: list[tuple[float, bool, str]],
) -> None:
    roster = HostRoster([HostSlots(name, 1) for name in "abc"], {})
    now = 0.0
    running = {*roster.due(now)}
    answering = set(running)  # the first launch counts on them

    for pause_s, is_lost, name in events:
        now += pause_s
        if name in running and is_lost:
            roster.lost(name, now)
            running.discard(name)
            answering.discard(name)
        elif name in running:
            roster.answered(name)
            answering.add(name)
        due = roster.due(now)
        assert not running & set(due)
        running |= set(due)
        assert set(names(roster)) == {"a", *answering}
