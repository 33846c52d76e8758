"""What every communicator promises, as programs that all ranks of a world run at once.

A scenario gets a communicator and returns the one that is whole afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.runtime.exchange.membership import Buffer, Communicator, WorldBroken

Die = Callable[[], object]


def ranks_are_those_of_the_world(world: Communicator) -> Communicator:
    seen = world.allgather_bytes(str(world.rank).encode())

    assert seen == [str(rank).encode() for rank in range(world.size)]
    return world


def flight_delivers_in_the_order_of_posting(world: Communicator) -> Communicator:
    peers = [peer for peer in range(world.size) if peer != world.rank]
    sent = {peer: [_marked(world.rank, peer, part) for part in range(3)] for peer in peers}
    received = {peer: [np.zeros(5, np.float32) for _ in range(3)] for peer in peers}

    with world.flight() as flight:
        tickets = [flight.receive(buffer, peer, 7) for peer in peers for buffer in received[peer]]
        for peer in peers:
            for vector in sent[peer]:
                flight.send(vector, peer, 7)
        for ticket in reversed(tickets):
            flight.wait(ticket)
            flight.wait(ticket)  # a second wait finds nothing to do

    for peer in peers:
        for part in range(3):
            np.testing.assert_array_equal(received[peer][part], _marked(peer, world.rank, part))
    return world


def _marked(source: int, target: int, part: int) -> Buffer:
    return np.full(5, 100 * source + 10 * target + part, np.float32)


def flight_waits_for_what_nobody_waited_for(world: Communicator) -> Communicator:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    long = np.full(1 << 17, world.rank, np.float32)
    arrived = np.full(1 << 17, -1, np.float32)

    if world.size > 1:
        with world.flight() as flight:
            flight.receive(arrived, left, 3)
            flight.send(long, right, 3)

    assert world.size == 1 or (arrived == left).all()
    return world


def flight_keeps_tags_apart(world: Communicator) -> Communicator:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    first, second = np.zeros(1, np.float32), np.zeros(1, np.float32)

    if world.size > 1:
        with world.flight() as flight:
            flight.receive(second, left, 2)
            flight.receive(first, left, 1)
            flight.send(np.ones(1, np.float32), right, 1)
            flight.send(np.full(1, 2, np.float32), right, 2)

        assert (first[0], second[0]) == (1, 2)
    return world


def what_is_told_reaches_all_in_rank_order(world: Communicator) -> Communicator:
    everyones = np.zeros((world.size, 2), np.int64)

    for turn in range(3):
        world.allgather_unchecked(np.array([world.rank, turn]), everyones)

        assert everyones.tolist() == [[rank, turn] for rank in range(world.size)]
    return world


def payloads_may_be_empty_and_of_any_length(world: Communicator) -> Communicator:
    payloads = [bytes(range(256)) * (rank % 3) for rank in range(world.size)]

    assert world.allgather_bytes(payloads[world.rank]) == payloads
    assert world.allgather_bytes(b"") == [b""] * world.size
    return world


def _arrays(seed: int) -> list[Buffer]:
    dice = np.random.default_rng(seed)
    numbers = dice.integers(0, 100, 12)
    plain = ["float32", "float64", "int8", "int64", "uint16", "bool", "complex64", "float16", "V2"]
    return [
        *(
            numbers.astype(dtype) if dtype != "V2" else numbers.astype("u2").view("V2")
            for dtype in plain
        ),
        numbers.astype(np.float32).reshape(3, 4),
        numbers.astype(np.float64).reshape(1, 12, 1),
        np.array(numbers[0], np.float32),
        np.array(numbers[1] > 50),
        np.array(numbers[2], np.int64),
        np.empty((0, 3), np.float32),
    ]


def broadcast_carries_any_type_and_shape_from_any_rank(world: Communicator) -> Communicator:
    for source in range(world.size):
        wanted = _arrays(source)
        mine = _arrays(world.rank + 50 if world.rank != source else source)

        for array in mine:
            world.broadcast(array, source)

        for array, original in zip(mine, wanted, strict=True):
            assert (array.dtype, array.shape) == (original.dtype, original.shape)
            assert array.tobytes() == original.tobytes()
    return world


def agree_is_a_bitwise_and(world: Communicator) -> Communicator:
    everyones_bits = 0b1111 & ~(1 << (world.rank % 3))

    agreed = world.agree(everyones_bits)

    cleared = {rank % 3 for rank in range(world.size)}
    assert agreed == sum(1 << bit for bit in range(4) if bit not in cleared)
    assert world.agree(0) == 0
    return world


def exchanges_follow_each_other(world: Communicator) -> Communicator:
    for number in range(20):
        vector = np.full(3, number if world.rank == number % world.size else -1, np.float32)
        world.broadcast(vector, number % world.size)
        assert world.agree(1 | (number << 1)) == 1 | (number << 1)
        assert vector[0] == number
    return world


def long_arrays_are_broadcast_in_pieces(world: Communicator) -> Communicator:
    """MPI refuses more than 7 bytes at once, as it refuses 2 GiB; arrays have 0 to 40."""
    from holdfast.runtime.exchange import mpi_communicator

    mpi_communicator.LARGEST_BROADCAST = 7
    world._comm = SmallMessages(world._comm, 7)  # type: ignore[attr-defined]
    for length in range(41):
        for source in range(world.size):
            array = np.arange(length, dtype=np.uint8) * (world.rank == source)

            world.broadcast(array, source)

            assert array.tolist() == list(range(length))
    return broadcast_carries_any_type_and_shape_from_any_rank(world)


class SmallMessages:
    """A communicator of mpi4py that refuses broadcasts of more than so many bytes."""

    def __init__(self, comm: Any, most: int) -> None:
        self._comm = comm
        self._most = most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Bcast(self, array: Buffer, root: int) -> None:
        from mpi4py import MPI

        if array.nbytes > self._most:
            raise MPI.Exception(MPI.ERR_ARG)
        self._comm.Bcast(array, root)


def message_that_mpi_refuses_is_no_death(world: Communicator) -> Communicator:
    """A mistake of the caller counts as no death; the world is whole afterwards."""
    from mpi4py import MPI

    from holdfast.runtime.exchange import mpi_communicator

    mpi_communicator.LARGEST_BROADCAST = 1 << 31
    untouched = np.empty(1 << 31, np.uint8)
    everyones = np.empty(world.size, np.int64)
    calls = [
        lambda: world.broadcast(untouched, 0),
        lambda: world.allgather_unchecked(untouched, everyones),
    ]
    for call in calls:
        assert _error_class(call) == MPI.ERR_ARG
    _assert_whole(world)
    return world


def _error_class(call: Callable[[], object]) -> int | None:
    from mpi4py import MPI

    try:
        call()
    except MPI.Exception as error:
        return error.Get_error_class()
    return None


LARGE = [long_arrays_are_broadcast_in_pieces, message_that_mpi_refuses_is_no_death]
"""Scenarios of messages that are too large for MPI; for real MPI alone."""

PLAIN = [
    ranks_are_those_of_the_world,
    flight_delivers_in_the_order_of_posting,
    flight_waits_for_what_nobody_waited_for,
    flight_keeps_tags_apart,
    what_is_told_reaches_all_in_rank_order,
    payloads_may_be_empty_and_of_any_length,
    broadcast_carries_any_type_and_shape_from_any_rank,
    agree_is_a_bitwise_and,
    exchanges_follow_each_other,
]
"""Scenarios in which no member dies and nothing breaks."""


def _breaks(call: Callable[[], object]) -> bool:
    try:
        call()
    except WorldBroken:
        return True
    return False


def _assert_whole(world: Communicator) -> None:
    """Check that all members can talk to each other; none is left in an earlier exchange."""
    ranks_are_those_of_the_world(world)
    payloads_may_be_empty_and_of_any_length(world)
    assert world.agree(1) == 1


def revoke_ends_pending_receives(world: Communicator) -> Communicator:
    """One member revokes; all others wait for a message that no member sends."""
    left = (world.rank - 1) % world.size
    _assert_whole(world)

    if world.rank == world.size - 1:
        world.revoke()
    else:
        assert _breaks(lambda: _receive(world, left))
    assert _breaks(lambda: world.allgather_bytes(b"late"))

    survivors = world.shrink()
    assert survivors.size == world.size
    _assert_whole(survivors)
    return survivors


def _receive(world: Communicator, peer: int) -> None:
    with world.flight() as flight:
        flight.receive(np.zeros(4, np.float32), peer, 99)


def error_of_ours_in_a_flight_does_not_leave_the_peers_waiting(world: Communicator) -> Communicator:
    _assert_whole(world)

    if world.rank == 0:
        try:
            with world.flight():
                raise ValueError("a mistake of the caller's")
        except ValueError:
            pass
    else:
        assert _breaks(lambda: _receive(world, 0))

    survivors = world.shrink()
    assert survivors.size == world.size
    _assert_whole(survivors)
    return survivors


def agree_works_on_a_revoked_world(world: Communicator) -> Communicator:
    _assert_whole(world)

    world.revoke()
    assert world.agree(0b101) == 0b101

    survivors = world.shrink()
    assert survivors.size == world.size
    _assert_whole(survivors)
    return survivors


def exchange_cut_short_by_a_revoke_fails_or_is_right(world: Communicator) -> Communicator:
    """Rank 0 revokes as soon as its own part is through; Open MPI then claims successes."""
    for _ in range(5):
        _assert_whole(world)
        _fails_or_is_right(world)
        if world.rank == 0:
            world.revoke()
        world = world.shrink()
    _assert_whole(world)
    return world


def _fails_or_is_right(world: Communicator) -> None:
    with contextlib.suppress(WorldBroken):
        payloads_may_be_empty_and_of_any_length(world)


REVOKING = [
    exchange_cut_short_by_a_revoke_fails_or_is_right,
    revoke_ends_pending_receives,
    error_of_ours_in_a_flight_does_not_leave_the_peers_waiting,
    agree_works_on_a_revoked_world,
]
"""Scenarios in which no member dies, but the world must be shrunk (to itself)."""

VICTIM = 1


def _dies(world: Communicator, die: Die) -> None:
    _assert_whole(world)
    if world.rank == VICTIM:
        die()


def death_breaks_an_allgather(world: Communicator, die: Die) -> Communicator:
    _dies(world, die)

    assert _breaks(lambda: world.allgather_bytes(b"anyone?"))

    return _shrunk(world)


def exchange_cut_short_by_a_death_fails_or_is_right(world: Communicator, die: Die) -> Communicator:
    _dies(world, die)

    _fails_or_is_right(world)
    _fails_or_is_right(world)

    return _shrunk(world)


def death_breaks_a_vote_on_all_alike(world: Communicator, die: Die) -> Communicator:
    """Without an exchange before it: the vote itself finds the death."""
    _dies(world, die)

    assert _breaks(lambda: world.agree(1))

    return _shrunk(world)


def death_breaks_a_flight_and_all_of_it_ends(world: Communicator, die: Die) -> Communicator:
    """Also the survivors that wait only for each other get to know, by the revoke."""
    _dies(world, die)
    buffers = [np.zeros(1 << 15, np.float32) for _ in range(world.size)]

    def exchange() -> None:
        with world.flight() as flight:
            for peer in range(world.size):
                if peer != world.rank:
                    flight.receive(buffers[peer], peer, 5)
            for peer in range(world.size):
                if peer != world.rank:
                    flight.send(np.ones(1 << 15, np.float32), peer, 5)

    assert _breaks(exchange)
    assert _breaks(lambda: world.agree(1))
    return _shrunk(world)


def _shrunk(world: Communicator) -> Communicator:
    world.revoke()
    survivors = world.shrink()
    assert survivors.size == world.size - 1
    assert survivors.rank == world.rank - (world.rank > VICTIM)
    _assert_whole(survivors)
    return survivors


MORTAL = [
    exchange_cut_short_by_a_death_fails_or_is_right,
    death_breaks_an_allgather,
    death_breaks_a_vote_on_all_alike,
    death_breaks_a_flight_and_all_of_it_ends,
]
"""Scenarios in which one rank dies."""
