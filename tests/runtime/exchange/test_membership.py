"""Worlds are agreed on: every survivor holds the same one, for all deaths at all moments."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
from fake_communicator import FakeCommunicator, run_world

from holdfast.recovery.world import REFUSED, WorkerId, World
from holdfast.runtime.exchange.membership import Membership, WorldBroken

RANKS = 4
WORLD = World(5, tuple(WorkerId(20 + rank) for rank in range(RANKS)), 3)


HOSTS = ("a", "b", "a", "c")


def member(
    communicator: FakeCommunicator,
    ask_head: Callable[[World], int] = lambda world: world.generation,
) -> Membership:
    ticks = itertools.count()
    me = WORLD.workers[communicator.rank]
    host_of = dict(zip(WORLD.workers, HOSTS, strict=True))
    return Membership(me, WORLD, communicator, lambda: float(next(ticks)), host_of, ask_head)


def test_survivors_form_the_next_generation_in_their_order() -> None:
    def program(communicator: FakeCommunicator) -> tuple[World, tuple[int, ...], int]:
        membership = member(communicator)
        membership.join(version=0)
        if communicator.rank == 0:
            communicator.die()
        revoked, shrunk, agreed = membership.repair(communicator.rank, on_revoked=lambda: None)
        assert revoked < shrunk < agreed
        communicator.leave()
        return membership.world, membership.versions, membership.communicator.rank

    survivors = run_world(RANKS, program)

    world = World(6, WORLD.workers[1:], 3)
    assert survivors == [None, *((world, (1, 2, 3), rank) for rank in range(3))]


def test_survivors_stay_on_their_hosts() -> None:
    def program(communicator: FakeCommunicator) -> tuple[str, ...]:
        membership = member(communicator)
        membership.join(version=0)
        assert membership.hosts == HOSTS
        if communicator.rank == 1:
            communicator.die()
        membership.repair(0, on_revoked=lambda: None)
        communicator.leave()
        return membership.hosts

    assert run_world(RANKS, program) == [("a", "a", "c"), None, ("a", "a", "c"), ("a", "a", "c")]


@pytest.mark.parametrize("number", [9, REFUSED])
def test_world_of_survivors_has_the_number_that_the_head_gives_its_first_worker(
    number: int,
) -> None:
    questions: list[World] = []

    def ask_head(world: World) -> int:
        questions.append(world)
        return number

    def program(communicator: FakeCommunicator) -> World:
        membership = member(communicator, ask_head)
        membership.join(version=0)
        if communicator.rank == 0:
            communicator.die()
        with contextlib.suppress(WorldBroken):
            membership.repair(0, on_revoked=lambda: None)
        communicator.leave()
        return membership.world

    survivors = run_world(RANKS, program)

    named = WORLD if number == REFUSED else World(number, WORLD.workers[1:], WORLD.capacity)
    assert survivors == [None, *3 * (named,)]
    assert questions == [WORLD.shrunk_to(WORLD.workers[1:])]


def until_repaired(membership: Membership) -> World:
    """MendResult until a world is agreed on, as the step table does."""
    while True:
        try:
            membership.repair(0, on_revoked=lambda: None)
        except WorldBroken:
            continue
        return membership.world


@pytest.mark.parametrize("victims", [(0,), (3,), (0, 1), (1, 3), (0, 1, 2)])
def test_world_is_the_same_for_all_survivors_whenever_others_die(victims: tuple[int, ...]) -> None:
    def program(communicator: FakeCommunicator) -> World:
        membership = member(communicator)
        with contextlib.suppress(WorldBroken):
            membership.join(version=0)
        world = until_repaired(membership)
        communicator.leave()
        return world

    for moment in range(1, 70):
        deaths = {victim: moment + 9 * place for place, victim in enumerate(victims)}
        worlds = run_world(RANKS, program, seed=moment, deaths=deaths)

        survivors = {world for world in worlds if world is not None}
        assert len(survivors) == 1, moment
        (world,) = survivors
        alive = {WORLD.workers[rank] for rank in range(RANKS) if worlds[rank] is not None}
        assert alive <= set(world.workers) <= set(WORLD.workers)
        assert world.generation > WORLD.generation


def test_exchange_together_ends_alike_for_all_even_if_it_breaks_for_some() -> None:
    """Rank 2 dies within the exchange, so some have its message and some have not."""

    def program(communicator: FakeCommunicator) -> bool:
        membership = member(communicator)
        membership.join(version=0)
        try:
            found = membership.together(lambda: communicator.allgather_bytes(b"x"))
            has_succeeded = found == [b"x"] * RANKS
        except WorldBroken:
            has_succeeded = False
        communicator.leave()
        return has_succeeded

    endings = set()
    for moment in range(1, 60):
        told = run_world(RANKS, program, seed=moment, deaths={2: moment + 14})
        survivors = {told[rank] for rank in (0, 1, 3)}
        assert len(survivors) == 1, (moment, told)
        endings |= survivors

    assert endings == {True, False}


def test_one_broken_exchange_is_everyones() -> None:
    def program(communicator: FakeCommunicator) -> str:
        membership = member(communicator)

        def exchange() -> str:
            if communicator.rank == 1:
                raise WorldBroken("only here")
            return "fine"

        try:
            return membership.together(exchange)
        except WorldBroken as error:
            return str(error)
        finally:
            communicator.leave()

    told = run_world(3, program)

    assert told == ["the exchange of a peer failed", "only here", "the exchange of a peer failed"]
