"""Hosts that are left out when pairs do not reach each other: the fewest that explain it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.partition import Pair, left_out


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
