"""The second holder of each rank's slice of the state.

Theory.  Every worker has the whole state, so a second copy of a slice costs memory of its
holder and no network.  The holder must be on another node, or it dies with the first.
Holders come in *pairs*: each holds its own slice and its partner's.  Two nodes hold the
only copies of a slice only if some of their workers are partners.  In a ring, every two
neighbouring nodes would.  (GEMINI, SOSP 2023, shows that groups lose least.)

Ranks are laid in a row, node by node, the largest node first.  Each rank is paired with
the rank half the row away.  If no node is longer than half the row, the partner is on
another node.  An odd row first gives up one triple of ranks on three nodes, which hold
each other's slices in a circle.  If one node has more than half of all workers, some of
them find no partner.  Their slices are dealt to the workers of the other nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

Slices: TypeAlias = "tuple[int, ...]"
"""Slices, named by the ranks that hold them first, in ascending order."""


def second_slices(nodes: Sequence[str]) -> tuple[Slices, ...]:
    """Return the slices that each rank holds besides its own; ``nodes`` are in rank order.

    With several nodes, every slice has exactly one second holder, on another node than
    its first.  With one node no rank holds a second slice: both copies would be lost
    together.
    """
    sizes = Counter(nodes)
    row = sorted(range(len(nodes)), key=lambda rank: (-sizes[nodes[rank]], nodes[rank], rank))
    held: list[list[int]] = [[] for _ in nodes]
    largest = sizes[nodes[row[0]]] if row else 0
    if largest < len(row):
        _deal(row, largest, nodes, held)
    return tuple(tuple(sorted(slices)) for slices in held)


def _deal(row: list[int], largest: int, nodes: Sequence[str], held: list[list[int]]) -> None:
    """Give every slice of a row of several nodes its second holder."""
    lonely: list[int] = []
    others = row[largest:]
    if 2 * largest > len(row):
        lonely, row = row[len(others) : largest], [*row[: len(others)], *others]
    elif len(row) % 2:
        triple = _one_of_each(row, nodes)
        row = [rank for rank in row if rank not in triple]
        _swap(triple, 1, held)
    _swap(row, len(row) // 2, held)
    for turn, rank in enumerate(lonely):
        held[others[turn % len(others)]].append(rank)


def _one_of_each(row: Sequence[int], nodes: Sequence[str]) -> list[int]:
    """Return one rank of each of the three largest nodes."""
    first_of: dict[str, int] = {}
    for rank in row:
        first_of.setdefault(nodes[rank], rank)
    return list(first_of.values())[:3]


def _swap(row: Sequence[int], distance: int, held: list[list[int]]) -> None:
    """Let each rank of a row hold the slice of the rank ``distance`` further, cyclically."""
    for place, rank in enumerate(row):
        held[rank].append(row[(place + distance) % len(row)])
