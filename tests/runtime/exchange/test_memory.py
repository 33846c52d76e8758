"""Vectors that peers can read, and workers that map the memory of each other."""

from __future__ import annotations

import os
import struct
import sys

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world

from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.memory import SharedVectors, map_peers


def test_vectors_are_distinct_zeros_at_multiples_of_64_bytes() -> None:
    vectors = SharedVectors.create(17, 3)
    found = [vectors.allocate() for _ in range(3)]
    vectors.close()

    for index, vector in enumerate(found):
        assert vector.tolist() == [0.0] * 17
        assert vector.ctypes.data % 64 == 0
        assert vectors.index_of(vector) == index
        vector[:] = index + 1
    assert [vector.sum() for vector in found] == [17.0, 34.0, 51.0]


def test_more_vectors_than_there_are_do_not_overlap() -> None:
    vectors = SharedVectors.create(4, 1)
    vectors.allocate()

    with pytest.raises(MemoryError, match="all 1 shared vectors"):
        vectors.allocate()
    vectors.close()


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


def test_ticket_of_a_process_that_is_gone_is_refused() -> None:
    vectors = SharedVectors.create(5, 2)
    ticket = (2**22 + 1).to_bytes(8, sys.byteorder) + vectors.ticket[8:]

    with pytest.raises(OSError, match="No such file"):
        SharedVectors.open(ticket)
    vectors.close()


def test_memory_cannot_shrink_under_its_readers() -> None:
    vectors = SharedVectors.create(2000, 2)
    number = np.frombuffer(vectors.ticket, np.int64, 2)[1]

    with pytest.raises(PermissionError):
        os.ftruncate(int(number), 4096)
    vectors.close()


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


def test_workers_on_two_hosts_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them agree on that, or one would wait for messages that no member sends."""
    hosts = iter([b"here", b"here", b"there"])
    monkeypatch.setattr("holdfast.runtime.exchange.memory._host", lambda: next(hosts))
    check_meeting(shared=False)


def test_workers_that_may_not_open_the_memory_of_one_share_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tickets = iter([False] * 3 + [True] * 100)
    plain = SharedVectors.open

    def sometimes(ticket: bytes) -> SharedVectors:
        if not next(tickets):
            return plain(ticket)
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(SharedVectors, "open", sometimes)
    check_meeting(shared=False)


def test_workers_of_one_host_share_memory() -> None:
    check_meeting(shared=True)


def check_meeting(*, shared: bool) -> None:
    world = World(1, tuple(map(WorkerId, range(3))), 3)

    def program(communicator: FakeCommunicator) -> bool:
        membership = Membership(WorkerId(communicator.rank), world, communicator, clock=lambda: 0.0)
        mine = {work: SharedVectors.create(5, 2) for work in Work}
        found = map_peers(membership, list(mine.values()))
        communicator.leave()
        for vectors in mine.values():
            vectors.close()
        assert len(found) == len(mine)
        assert len({entry is None for entry in found}) == 1
        return found[0] is not None

    assert run_world(3, program) == [shared] * 3
