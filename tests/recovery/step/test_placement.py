from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.placement import second_slices

ROWS = st.lists(st.sampled_from("abcdefgh"), max_size=24)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("", ()),
        ("a", ((),)),
        ("aaaa", ((), (), (), ())),
        ("ab", ((1,), (0,))),
        ("aabb", ((2,), (3,), (0,), (1,))),
        ("abab", ((1,), (0,), (3,), (2,))),
        ("abc", ((1,), (2,), (0,))),
        ("aab", ((2,), (), (0, 1))),
        ("aaaab", ((4,), (), (), (), (0, 1, 2, 3))),
        ("aaaabb", ((4,), (5,), (), (), (0, 2), (1, 3))),
    ],
)
def test_slices_have_their_second_holders_where_expected(
    nodes: str, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert second_slices(nodes) == expected


@given(ROWS)
def test_every_slice_has_one_second_holder_on_another_node(nodes: list[str]) -> None:
    held = second_slices(nodes)

    holders = {piece: rank for rank, slices in enumerate(held) for piece in slices}
    assert sum(map(len, held)) == len(holders)
    if len(set(nodes)) > 1:
        assert sorted(holders) == list(range(len(nodes)))
        assert all(nodes[piece] != nodes[rank] for piece, rank in holders.items())
    else:
        assert not holders


@given(ROWS)
def test_work_is_even_where_no_node_outweighs_the_others(nodes: list[str]) -> None:
    if 2 * max(Counter(nodes).values(), default=0) <= len(nodes):
        assert {len(slices) for slices in second_slices(nodes)} <= {1}


@given(ROWS)
def test_holders_are_pairs_but_for_one_triple(nodes: list[str]) -> None:
    """A ring would have as many pairs of nodes that must not both be lost as it has workers."""
    held = second_slices(nodes)
    if 2 * max(Counter(nodes).values(), default=0) > len(nodes):
        return

    paired = sum(held[held[rank][0]] == (rank,) for rank in range(len(nodes)))

    assert paired == len(nodes) - (3 if len(nodes) % 2 else 0)


@given(ROWS)
def test_nobody_holds_much_more_than_others_of_the_smaller_nodes(nodes: list[str]) -> None:
    sizes = Counter(nodes)
    largest = max(sizes.values(), default=0)
    if largest == len(nodes):
        return
    big = {node for node, size in sizes.items() if size == largest}
    loads = [len(s) for node, s in zip(nodes, second_slices(nodes), strict=True) if node not in big]
    assert max(loads, default=0) - min(loads, default=0) <= 1
    assert all(
        len(s) <= 1
        for node, s in zip(nodes, second_slices(nodes), strict=True)
        if node in big and 2 * largest > len(nodes)
    )
