"""Hosts of a job: workers in blocks on them, who is tried again, and who is left out."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.placement import (
    FIRST_TRY_AFTER_S,
    LONGEST_PAUSE_S,
    REMEMBERED_S,
    HostRoster,
    HostSlots,
    Pair,
    SavePart,
    left_out,
    place_workers,
    save_parts,
    total_slots,
    usable_hosts,
)
from holdfast.recovery.world import WorkerId


@pytest.mark.parametrize(
    ("count", "slots", "placed"),
    [
        (4, {"a": 2, "b": 2}, "aabb"),
        (4, {"a": 4, "b": 4}, "aaaa"),
        (4, {"a": 1, "b": 2, "c": 1}, "abbc"),
        (4, {"a": 0, "b": 2, "c": 2}, "bbcc"),
        (5, {"a": 1, "b": 2}, "aabbb"),
        (0, {"a": 1}, ""),
    ],
)
def test_workers_fill_hosts_in_order(count: int, slots: dict[str, int], placed: str) -> None:
    hosts = [HostSlots(name, number) for name, number in slots.items()]

    assert place_workers(count, hosts) == tuple(placed)


def test_host_that_was_lost_twice_is_left_out_but_never_that_of_the_head() -> None:
    hosts = [HostSlots(name, 2) for name in "abc"]

    assert usable_hosts(hosts, {"a": 5, "b": 2, "c": 1}) == (hosts[0], hosts[2])
    assert usable_hosts(hosts, {}) == tuple(hosts)


@given(st.integers(0, 40), st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_hosts_are_blocks_of_ranks_and_share_what_is_beyond_their_slots(
    count: int, slots: list[int]
) -> None:
    hosts = [HostSlots(f"h{number}", free) for number, free in enumerate(slots)]
    if not any(slots):
        return

    placed = place_workers(count, hosts)

    assert len(placed) == count
    assert list(placed) == sorted(placed, key=lambda name: int(name[1:]))
    beyond = [Counter(placed)[host.name] - host.slots for host in hosts if host.slots]
    if count > total_slots(hosts):
        assert max(beyond) - min(beyond) <= 1
    else:
        assert max(beyond) <= 0


@pytest.mark.parametrize(
    ("living", "parts"),
    [
        ((0, 1, 2, 3), [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        ((1, 2, 3), [(0, 2, 0, 1), (1, 2, 0, 2), (1, 2, 1, 2)]),
        ((2, 3), [(0, 1, 0, 2), (0, 1, 1, 2)]),
        ((0, 2, 4), [(0, 2, 0, 2), (1, 2, 0, 1), (0, 2, 1, 2)]),
        ((3,), [(0, 1, 0, 1)]),
    ],
)
def test_workers_of_each_host_divide_its_share_of_a_save(
    living: tuple[int, ...], parts: list[tuple[int, int, int, int]]
) -> None:
    host_of = {WorkerId(worker): name for worker, name in enumerate("aabba")}
    workers = tuple(map(WorkerId, living))

    found = save_parts(workers, host_of)

    assert found == dict(zip(workers, (SavePart(*part) for part in parts), strict=True))


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


def pairs(words: str) -> list[Pair]:
    return [frozenset(word) for word in words.split()]


@pytest.mark.parametrize(
    ("workers", "broken", "out"),
    [
        ({"a": 1, "b": 1, "c": 1}, "", ""),
        ({"a": 1, "b": 1, "c": 1}, "bc", "c"),
        ({"a": 1, "b": 1, "c": 2}, "bc", "b"),
        ({"a": 1, "b": 1, "c": 1}, "ab bc", "b"),
        ({"a": 1, "b": 4, "c": 4}, "ab ac", "bc"),
        ({"a": 0, "b": 4}, "ab", "b"),
        ({"a": 1, "b": 8, "c": 1, "d": 1}, "bc bd", "b"),
        ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "bd be cd ce", "de"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "ab bc cd bd", "bd"),
    ],
)
def test_fewest_hosts_are_left_out_and_of_those_the_fewest_workers(
    workers: dict[str, int], broken: str, out: str
) -> None:
    assert left_out(workers, pairs(broken)) == tuple(out)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, int], list[Pair]]:
    names = [f"h{number}" for number in range(draw(st.integers(2, 8)))]
    workers = {name: draw(st.integers(0, 3)) for name in names}
    every = [frozenset(pair) for pair in combinations(names, 2)]
    return workers, draw(st.lists(st.sampled_from(every), unique=True))


@given(clusters())
def test_no_other_set_of_hosts_explains_it_at_less_cost(
    cluster: tuple[dict[str, int], list[Pair]],
) -> None:
    workers, broken = cluster
    head, *others = workers

    out = left_out(workers, broken)

    def cost(hosts: tuple[str, ...]) -> tuple[int, int]:
        return len(hosts), sum(workers[name] for name in hosts)

    sets = [found for size in range(len(workers)) for found in combinations(others, size)]
    explain = [found for found in sets if all(pair & set(found) for pair in broken)]
    assert head not in out
    assert out in explain
    assert cost(out) == min(map(cost, explain))
    assert left_out(workers, broken[::-1]) == out


@given(st.integers(30, 60), st.data())
def test_hosts_of_a_large_cluster_that_stay_reach_each_other(
    size: int, data: st.DataObject
) -> None:
    names = [f"h{number}" for number in range(size)]
    some = st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True)
    broken = [frozenset(pair) for pair in data.draw(st.lists(some, max_size=200))]

    out = left_out(dict.fromkeys(names, 1), broken)

    assert names[0] not in out
    assert all(pair & set(out) for pair in broken)
