"""Placement of workers on hosts: in blocks, in the order of the hosts, never more than asked."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.placement import (
    HostSlots,
    place_workers,
    savers_among,
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
    ("living", "savers"),
    [
        ((0, 1, 2, 3), (0, 1)),
        ((1, 2, 3), (1,)),
        ((2, 3), (2, 3)),
        ((0, 4), (0, 4)),
        ((3,), (3,)),
    ],
)
def test_workers_on_the_host_of_the_first_one_save(
    living: tuple[int, ...], savers: tuple[int, ...]
) -> None:
    host_of = {WorkerId(worker): name for worker, name in enumerate("aabba")}

    assert savers_among([WorkerId(worker) for worker in living], host_of) == savers
