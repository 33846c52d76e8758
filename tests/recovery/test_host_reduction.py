"""Sums over hosts: the same additions as on one rank, each made once, and few vectors sent."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tree_sum import tree_sum, wide_leaves

from holdfast.recovery.reduction import (
    FloatVector,
    Fold,
    HostPlan,
    Pieces,
    ReductionPlan,
    host_roots,
    maximal_nodes,
    pieces_of,
    plan_reduction,
)
from holdfast.recovery.world import Assignment, WorkerId, World, assign


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, ...]:
    """The host of each rank: neighbours together, as workers are placed, or anyhow."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    return tuple(draw(st.permutations(hosts)) if draw(st.booleans()) else hosts)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Assignment, tuple[int, ...]]:
    """Any owner for any microbatch, as after any history of adoptions."""
    hosts = draw(layouts())
    owners = draw(st.lists(st.integers(0, len(hosts) - 1), min_size=1, max_size=40))
    return Assignment(tuple(map(WorkerId, owners))), hosts


def plan_of(assignment: Assignment, hosts: tuple[int, ...]) -> ReductionPlan:
    workers = tuple(map(WorkerId, range(len(hosts))))
    world = World(0, workers, len(workers))
    return plan_reduction(assignment, world, assignment.microbatches)


@given(worlds())
def test_roots_of_a_host_are_the_maximal_nodes_of_its_workers_together(
    world: tuple[Assignment, tuple[int, ...]],
) -> None:
    assignment, hosts = world

    found = host_roots(plan_of(assignment, hosts), hosts)

    for host in set(hosts):
        owned = [m for m, owner in enumerate(assignment.owners) if hosts[owner] == host]
        nodes = [
            (root.inside.roots[0].node.start, root.inside.roots[-1].node.stop)
            for root in found.roots
            if root.host == host
        ]
        expected = maximal_nodes(owned, assignment.microbatches)
        assert nodes == [(node.start, node.stop) for node in expected]


@given(layouts(), st.integers(0, 3000))
def test_pieces_join_to_the_vector_and_each_has_one_server_a_host(
    hosts: tuple[int, ...], size: int
) -> None:
    pieces = [pieces_of(rank, hosts, size) for rank in range(len(hosts))]

    own = sorted((piece.start, piece.stop) for mine in pieces for piece in mine.own)
    assert list(itertools.chain(*(range(*bounds) for bounds in own))) == list(range(size))
    served = {
        (piece.start, piece.stop, piece.owner, rank)
        for rank, mine in enumerate(pieces)
        for piece in mine.served
    }
    expected = {
        (piece.start, piece.stop, owner, server)
        for owner, mine in enumerate(pieces)
        for piece in mine.own
        for server in piece.servers
        if server != owner
    }
    assert served == expected
    for owner, mine in enumerate(pieces):
        for piece in mine.own:
            assert [hosts[server] for server in piece.servers] == sorted(set(hosts))
            assert piece.servers[hosts[owner]] == owner


@given(layouts())
def test_workers_of_a_host_share_its_pieces_evenly(hosts: tuple[int, ...]) -> None:
    counts = Counter({rank: len(pieces_of(rank, hosts, 1 << 20).own) for rank in range(len(hosts))})

    for host in set(hosts):
        mine = [count for rank, count in counts.items() if hosts[rank] == host]
        assert max(mine) - min(mine) <= 1
        assert sum(mine) == max(Counter(hosts).values())


class Rehearsal:
    """A sum over hosts in one process: what each rank adds, and what crosses the network."""

    def __init__(self, assignment: Assignment, hosts: tuple[int, ...], size: int) -> None:
        self._hosts = hosts
        self._assignment = assignment
        self._plan: HostPlan = host_roots(plan_of(assignment, hosts), hosts)
        self._pieces: list[Pieces] = [pieces_of(rank, hosts, size) for rank in range(len(hosts))]
        self._size = size
        self.sent = Counter[int]()
        """Floats that each host sends."""

    def sum(self, leaves: list[FloatVector]) -> list[FloatVector]:
        """Return the total as each host has it."""
        results = [np.full(self._size, np.nan, np.float32) for _ in set(self._hosts)]
        sums = [self._sum_of_host(index, leaves) for index in range(len(self._plan.roots))]
        above = ReductionPlan((), self._plan.combines)
        for owner, mine in enumerate(self._pieces):
            for piece in mine.own:
                part = slice(piece.start, piece.stop)
                total = np.empty(piece.stop - piece.start, np.float32)
                Fold(above, len(total)).sum([vector[part] for vector in sums], total)
                for root in self._plan.roots:
                    if root.host != self._hosts[owner]:
                        self.sent[root.host] += len(total)
                for host, _ in enumerate(piece.servers):
                    assert np.isnan(results[host][part]).all(), "a piece was summed twice"
                    results[host][part] = total
                    if host != self._hosts[owner]:
                        self.sent[self._hosts[owner]] += len(total)
        return results

    def _sum_of_host(self, index: int, leaves: list[FloatVector]) -> FloatVector:
        inside = self._plan.roots[index].inside
        assert {self._hosts[root.rank] for root in inside.roots} == {self._plan.roots[index].host}
        total = np.empty(self._size, np.float32)
        rows = [tree_sum(leaves[root.node.start : root.node.stop]) for root in inside.roots]
        Fold(inside, self._size).sum(rows, total)
        return total


@given(worlds(), st.integers(1, 200), st.integers(0, 2**32))
def test_every_host_has_the_bits_of_the_tree_whoever_owns_what(
    world: tuple[Assignment, tuple[int, ...]], size: int, seed: int
) -> None:
    assignment, hosts = world
    leaves = wide_leaves(assignment.microbatches, seed, size)

    totals = Rehearsal(assignment, hosts, size).sum(leaves)

    expected = tree_sum(leaves).tobytes()
    assert [total.tobytes() for total in totals] == [expected] * len(set(hosts))


@given(worlds())
def test_host_with_so_many_roots_sends_as_many_vectors_less_its_own_slice(
    world: tuple[Assignment, tuple[int, ...]],
) -> None:
    assignment, hosts = world
    count = len(set(hosts))
    size = 16 * count * max(Counter(hosts).values())  # all pieces are equal
    rehearsal = Rehearsal(assignment, hosts, size)

    rehearsal.sum(wide_leaves(assignment.microbatches, 1, size))

    roots = Counter(root.host for root in host_roots(plan_of(assignment, hosts), hosts).roots)
    for host in set(hosts):
        assert rehearsal.sent[host] * count == (roots[host] + 1) * (count - 1) * size


def test_ten_thousand_workers_on_hosts_of_eight_have_one_root_a_host() -> None:
    hosts = tuple(rank // 8 for rank in range(10_000))
    world = World(0, tuple(map(WorkerId, range(10_000))), 10_000)
    plan = plan_reduction(assign(10_000, world), world, 10_000)

    assert len(host_roots(plan, hosts).roots) == 1_250
