"""Vectors that peers can read, and workers that map the memory of each other."""

from __future__ import annotations

import os
import struct

import pytest
from fake_communicator import FakeCommunicator, run_world

from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.memory import SharedVectors, map_peers


def test_what_one_writes_the_other_reads_even_after_the_owner_has_closed() -> None:
    mine = SharedVectors.create(5, 2)
    theirs = SharedVectors.open(mine.ticket)
    mine.allocate()[:] = [1, 2, 3, 4, 5]
    mine.close()

    assert theirs.at(0).tolist() == [1, 2, 3, 4, 5]
    theirs.at(1)[:] = 7
    assert mine.at(1).tolist() == [7] * 5


def test_ticket_of_other_vectors_in_the_same_place_is_refused() -> None:
    """Process and descriptor numbers come back; the token does not."""
    first = SharedVectors.create(5, 2)
    ticket = first.ticket
    first.close()
    second = SharedVectors.create(5, 2)
    assert second.ticket[:32] == ticket[:32], "the descriptor was expected to be used again"

    with pytest.raises(LookupError, match=f"process {os.getpid()}"):
        SharedVectors.open(ticket)
    second.close()


def test_memory_that_is_given_back_costs_nothing_until_the_next_write() -> None:
    vectors = SharedVectors.create(100_000, 4)
    peer = SharedVectors.open(vectors.ticket)
    for index in range(4):
        vectors.at(index)[:] = 1.0
    full = os.fstat(peer_fd(vectors)).st_blocks

    vectors.give_back()

    assert os.fstat(peer_fd(vectors)).st_blocks * 10 < full
    assert not peer.at(2).any()
    vectors.at(2)[:] = 5.0
    assert (peer.at(2) == 5.0).all()
    assert SharedVectors.open(vectors.ticket).floats == 100_000  # the token is still there
    vectors.close()


def peer_fd(vectors: SharedVectors) -> int:
    """Return the descriptor of the memory."""
    return struct.unpack_from("<qq", vectors.ticket)[1]


def test_workers_on_two_kernels_share_nothing_though_their_host_has_one_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them agree on that, or one would wait for messages that no member sends."""
    kernels = iter([bytes(24), bytes(24), b"1" * 24])
    monkeypatch.setattr("holdfast.runtime.exchange.memory._kernel", lambda: next(kernels))

    assert meet(["a"] * 3) == [[], [], []]


@pytest.mark.parametrize("hosts", [["a"] * 3, ["b", "a", "a"]])
def test_workers_that_may_not_open_the_memory_of_one_share_nothing(
    hosts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tickets = iter([False] * 3 + [True] * 100)
    plain = SharedVectors.open

    def sometimes(ticket: bytes) -> SharedVectors:
        if not next(tickets):
            return plain(ticket)
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(SharedVectors, "open", sometimes)

    assert meet(hosts) == [[], [], []]


def test_workers_share_the_memory_of_their_host_alone() -> None:
    assert meet([""] * 3) == [[0, 1, 2]] * 3
    assert meet(["a", "b", "a"]) == [[0, 2], [1], [0, 2]]
    assert meet(["a", "b", "c"]) == [[0], [1], [2]]


def test_memory_of_another_host_is_never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process id may be that of a process here: ``/proc`` would show another's memory."""
    hosts = ["a", "b", "a", "b"]
    plain = SharedVectors.open
    owners: dict[bytes, int] = {}
    opened: list[int] = []

    def program(communicator: FakeCommunicator) -> None:
        rank = communicator.rank
        mine = SharedVectors.create(5, 2)
        owners[mine.ticket] = rank
        map_peers(member(communicator, hosts), [mine])
        communicator.leave()

    def watched(ticket: bytes) -> SharedVectors:
        opened.extend(owner for known, owner in owners.items() if known == ticket)
        return plain(ticket)

    monkeypatch.setattr(SharedVectors, "open", watched)
    run_world(4, program)

    assert sorted(opened) == [0, 1, 2, 3]  # each by its one neighbour


def test_ranks_of_a_host_write_into_one_result_and_other_hosts_into_theirs() -> None:
    hosts = ["a", "b", "a", "b"]

    def program(communicator: FakeCommunicator) -> list[float]:
        mine = SharedVectors.create(4, 2)
        (memory,) = map_peers(member(communicator, hosts), [mine])
        result = next(memory.turns)
        result[communicator.rank] = 1 + communicator.rank
        communicator.agree(1)
        communicator.leave()
        return [float(value) for value in result]

    of_a, of_b = [1.0, 0.0, 3.0, 0.0], [0.0, 2.0, 0.0, 4.0]
    assert run_world(4, program) == [of_a, of_b, of_a, of_b]


def meet(hosts: list[str]) -> list[list[int] | None]:
    """Return the ranks whose vectors each rank maps."""

    def program(communicator: FakeCommunicator) -> list[int]:
        mine = {work: SharedVectors.create(5, 2) for work in Work}
        found = map_peers(member(communicator, hosts), list(mine.values()))
        communicator.leave()
        for vectors in mine.values():
            vectors.close()
        assert len(found) == len(mine)
        ranks = [list(memory.vectors) for memory in found]
        assert ranks == [ranks[0]] * len(mine)
        assert found[0].is_common == (len(ranks[0]) == len(hosts))
        return ranks[0]

    return run_world(len(hosts), program)


def member(communicator: FakeCommunicator, hosts: list[str]) -> Membership:
    world = World(1, tuple(map(WorkerId, range(len(hosts)))), len(hosts))
    host_of = dict(zip(world.workers, hosts, strict=True))
    return Membership(WorkerId(communicator.rank), world, communicator, lambda: 0.0, host_of)
