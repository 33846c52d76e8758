"""The exact sum, over the fake: the same bits for all owners, and roots that survive deaths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world
from tree_sum import tree_sum, wide_leaves

from holdfast.recovery.reduction import (
    FloatVector,
    PartialSums,
    maximal_nodes,
)
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import Assignment, WorkerId, World
from holdfast.runtime.exchange.membership import Membership, WorldBroken
from holdfast.runtime.exchange.memory import SharedVectors, Sum
from holdfast.runtime.exchange.sums import Exchange

SMALL_BUCKET_FLOATS = 4096

TINY, ODD, LARGE = 3, 1003, 4 * SMALL_BUCKET_FLOATS + 1237
"""Some slices are empty; divisible by nothing; several buckets a slice, divisible by nothing."""

HOSTS = {
    "mapped": "",
    "two hosts": "ab",
    "three hosts": "abc",
    "hosts of two": "aabbcc",
    "uneven hosts": "aaab",
    "messages": None,
    "gathered": "ab",
}
"""The hosts that ranks go round, for each way to sum; None where no memory can be mapped."""

WAYS = tuple(HOSTS)


@pytest.fixture(autouse=True)
def _small_buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short vectors have several buckets then; all vectors are gathered, or none."""
    set_buckets(monkeypatch, SMALL_BUCKET_FLOATS)
    callspec = getattr(request.node, "callspec", None)
    gathers = callspec is not None and callspec.params.get("way") == "gathered"
    limit = 1 << 30 if gathers else 0
    monkeypatch.setattr("holdfast.runtime.exchange.sums.GATHERED_FLOATS", limit)


def set_buckets(patch: pytest.MonkeyPatch, floats: int) -> None:
    patch.setattr("holdfast.runtime.exchange.sums.BUCKET_FLOATS", floats)
    for name in ("_LEAST_BUCKET_FLOATS", "_MOST_BUCKET_FLOATS"):
        patch.setattr(f"holdfast.runtime.exchange.sums.{name}", floats)


class Party:
    """One rank of a test: its exchange, and the roots that it puts in."""

    def __init__(
        self,
        communicator: FakeCommunicator,
        world: World,
        assignment: Assignment,
        size: int,
        way: str = "mapped",
    ) -> None:
        self.communicator = communicator
        names = itertools.cycle(HOSTS[way] or [""])
        host_of = dict(zip(world.workers, names))  # noqa: B905  (for ever)
        self._me = world.workers[communicator.rank]
        self._assignment = assignment
        self._vectors = SharedVectors.create(size, assignment.microbatches + 1)
        self._sums = PartialSums(assignment.microbatches, self._vectors.allocate)
        membership = Membership(self._me, world, communicator, lambda: 0.0, host_of)
        offers = {Work.TRAIN: self._vectors}
        self._exchange = Exchange(membership, offers, assignment.microbatches)

    def meet(self, way: str) -> None:
        """Begin; all but messages need a meeting, which a death may break."""
        if HOSTS[way] is not None:
            self._exchange.map_peers()

    def sum(self, roots: Sequence[FloatVector], posted: Callable[[], None] = lambda: None) -> Sum:
        return self._exchange.sum(Work.TRAIN, roots, self._assignment, posted)

    def reassign(self) -> None:
        """Begin a new plan, as after the first step of a repaired world."""
        self._exchange.reassign()

    def roots(self, leaves: Sequence[FloatVector]) -> tuple[FloatVector, ...]:
        """Fold what this rank owns, as a transaction does."""
        owned = self._assignment.owned_by(self._me)
        self._sums.clear()
        for index in owned:
            leaf = self._sums.buffer()
            leaf[:] = leaves[index]
            self._sums.add_leaf(index, leaf)
        return self._sums.take(maximal_nodes(owned, len(leaves)))

    def leave(self) -> None:
        self.communicator.leave()
        self._vectors.close()


def random_assignment(dice: random.Random, world: World, microbatches: int) -> Assignment:
    """Let anybody own anything; some may own nothing, as spares do."""
    owners = dice.sample(world.workers, dice.randint(1, world.size))
    return Assignment(tuple(dice.choice(owners) for _ in range(microbatches)))


def check_one(way: str, ranks: int, microbatches: int, size: int) -> None:
    seed = 100 * ranks + microbatches
    dice = random.Random(seed)
    world = World(1, tuple(WorkerId(10 + rank) for rank in range(ranks)), ranks)
    assignment = random_assignment(dice, world, microbatches)
    rounds = [wide_leaves(microbatches, seed + number, size) for number in range(2)]

    def program(communicator: FakeCommunicator) -> list[bytes]:
        party = Party(communicator, world, assignment, size, way)
        party.meet(way)
        totals = []
        for leaves in rounds:
            roots = party.roots(leaves)
            before = [root.tobytes() for root in roots]
            total = party.sum(roots).vector
            communicator.agree(1)
            totals.append(total.tobytes())
            assert [root.tobytes() for root in roots] == before
        party.leave()
        return totals

    expected = [tree_sum(leaves).tobytes() for leaves in rounds]
    for totals in run_world(ranks, program, seed=seed):
        assert totals == expected, (way, ranks, microbatches, size, seed)


@pytest.mark.parametrize("change_owners", [False, True], ids=["same owners", "new owners"])
@pytest.mark.parametrize("ranks", range(2, 7))
def test_slow_rank_may_read_a_total_while_others_write_the_next(
    ranks: int, *, change_owners: bool
) -> None:
    """MPI may let ranks go on that a slow one has not met (`allgather_unchecked`)."""
    world = World(1, tuple(WorkerId(10 + rank) for rank in range(ranks)), ranks)
    assignment = random_assignment(random.Random(ranks), world, 5)
    rounds = [wide_leaves(5, seed, ODD) for seed in range(4)]

    def program(communicator: FakeCommunicator) -> bool:
        party = Party(communicator, world, assignment, ODD)
        party.meet("mapped")
        last, its_bytes, is_whole = np.zeros(0, np.float32), b"", True
        for leaves in rounds:
            total = party.sum(party.roots(leaves)).vector
            is_whole = is_whole and last.tobytes() == its_bytes
            communicator.agree(1)
            last, its_bytes = total, total.tobytes()
            if change_owners:
                party.reassign()
        party.leave()
        return is_whole

    assert all(run_world(ranks, program, seed=ranks))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", range(1, 7))
@pytest.mark.parametrize("size", [TINY, ODD])
def test_sums_have_the_bits_of_the_tree(way: str, ranks: int, size: int) -> None:
    for microbatches in range(1, 14):
        check_one(way, ranks, microbatches, size)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_sums_of_several_buckets_have_the_bits_of_the_tree(way: str, ranks: int) -> None:
    check_one(way, ranks, microbatches=7, size=LARGE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [ODD, LARGE // 4])
def test_death_at_any_moment_leaves_the_roots_and_the_next_sum_alone(way: str, size: int) -> None:
    """Survivors that voted no have their roots; survivors that got a yes have the right total."""
    ranks, microbatches = 3, 7
    world = World(1, tuple(map(WorkerId, range(ranks))), ranks)
    assignment = Assignment(tuple(WorkerId(index % ranks) for index in range(microbatches)))
    leaves = wide_leaves(microbatches, 5, size)
    expected = tree_sum(leaves).tobytes()

    def program(communicator: FakeCommunicator) -> str:
        party = Party(communicator, world, assignment, size, way)
        roots = party.roots(leaves)
        before = [root.tobytes() for root in roots]
        ending = "total"
        try:
            party.meet(way)
            try:
                total = party.sum(roots).vector
            except WorldBroken:
                communicator.agree(0)
                raise
            if communicator.agree(1):
                assert total.tobytes() == expected
            else:
                ending = "refused"
        except WorldBroken:
            ending = "broken"
        assert [root.tobytes() for root in roots] == before
        party.leave()
        return ending

    endings = set()
    for moment in range(1, 60):
        survivors = run_world(ranks, program, seed=moment, deaths={1: moment})
        endings |= {survivors[0], survivors[2]}

    assert {"total", "broken"} <= endings


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [ODD, LARGE])
def test_sum_that_overflows_warns_nobody_and_is_seen_by_its_slice(way: str, size: int) -> None:
    """Warnings are errors here; the vote joins what the ranks have seen."""
    world = World(1, tuple(map(WorkerId, range(2))), 2)
    assignment = Assignment((WorkerId(0), WorkerId(1)))
    huge = np.zeros(size, np.float32)
    huge[-1] = np.finfo(np.float32).max

    def program(communicator: FakeCommunicator) -> bool:
        party = Party(communicator, world, assignment, size, way)
        party.meet(way)
        total = party.sum(party.roots([huge, huge]))
        communicator.agree(1)
        party.leave()
        return total.is_finite

    folds_all = way == "gathered"
    assert run_world(2, program) == [not folds_all, False]


@pytest.mark.parametrize(
    ("way", "kib", "is_gathered"),
    [
        ("two hosts", 64, True),
        ("two hosts", 65, False),
        ("hosts of two", 2, True),
        ("hosts of two", 3, False),
    ],
)
def test_vector_is_gathered_while_that_costs_the_network_little(
    monkeypatch: pytest.MonkeyPatch, way: str, kib: int, *, is_gathered: bool
) -> None:
    """Who gathers sees the whole sum, here one that overflows at its end."""
    monkeypatch.setattr("holdfast.runtime.exchange.sums.GATHERED_FLOATS", 32 * 1024)
    ranks = len(HOSTS[way] or "")
    world = World(1, tuple(map(WorkerId, range(ranks))), ranks)
    huge = np.zeros(kib * 256, np.float32)
    huge[-1] = np.finfo(np.float32).max

    def program(communicator: FakeCommunicator) -> bool:
        party = Party(communicator, world, Assignment(world.workers), huge.size, way)
        party.meet(way)
        total = party.sum(party.roots([huge] * ranks))
        communicator.agree(1)
        party.leave()
        return not total.is_finite

    assert all(run_world(ranks, program)) is is_gathered


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_seen_wherever_it_stands(value: float) -> None:
    world = World(1, (WorkerId(0),), 1)

    def program(communicator: FakeCommunicator) -> list[bool]:
        party = Party(communicator, world, Assignment((WorkerId(0),)), 20)
        seen = []
        for place in range(20):
            root = np.full(20, np.finfo(np.float32).max)  # finite, but not its sum
            seen.append(party.sum([root]).is_finite)
            root[place] = value
            seen.append(party.sum([root]).is_finite)
        return seen

    assert run_world(1, program) == [[True, False] * 20]
