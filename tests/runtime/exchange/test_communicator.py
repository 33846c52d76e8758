"""One contract, three communicators: the fake, the local one, and real MPI."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scenarios
from fake_communicator import FakeCommunicator, run_world
from local_communicator import LocalCommunicator
from mpi_jobs import play_on_mpi

from holdfast.runtime.exchange.membership import Communicator, WorldBroken

Scenario = Callable[[Communicator], Communicator]
MortalScenario = Callable[[Communicator, Callable[[], object]], Communicator]

SEEDS = range(10)
PROGRAM = "mpi_rank.py"


def named(scenario: object) -> str:
    return getattr(scenario, "__name__", str(scenario))


# --- the local one ------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", scenarios.PLAIN, ids=named)
def test_local_communicator(scenario: Scenario) -> None:
    world = LocalCommunicator()

    assert scenario(world) is world
    world.leave()


# --- the fake -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("scenario", scenarios.PLAIN, ids=named)
def test_fake_communicator(scenario: Scenario, size: int) -> None:
    for seed in SEEDS:
        run_world(size, lambda world: scenario(world).leave(), seed=seed)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("scenario", scenarios.REVOKING, ids=named)
def test_fake_communicator_that_is_revoked(scenario: Scenario, size: int) -> None:
    for seed in SEEDS:
        run_world(size, lambda world: scenario(world).leave(), seed=seed)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("scenario", scenarios.MORTAL, ids=named)
def test_fake_communicator_of_which_one_dies(scenario: MortalScenario, size: int) -> None:
    def program(world: FakeCommunicator) -> bool:
        scenario(world, world.die)
        world.leave()
        return True

    for seed in SEEDS:
        alive = run_world(size, program, seed=seed)

        assert alive == [None if rank == scenarios.VICTIM else True for rank in range(size)]


def test_fake_death_at_any_moment_is_survived_by_the_next_world() -> None:
    """A member dies at any moment of an exchange, a vote and a shrink: the rest comes through."""

    def program(world: FakeCommunicator) -> int:
        with contextlib.suppress(WorldBroken):
            world.allgather_bytes(b"x" * world.rank)
        with contextlib.suppress(WorldBroken):
            world.agree(1)
        world.revoke()
        survivors = world.shrink()
        world.leave()
        return survivors.size

    for moment in range(1, 30):
        sizes = run_world(3, program, seed=moment, deaths={1: moment})

        assert sizes[0] == sizes[2]
        assert sizes[0] in (2, 3)


def test_fake_refuses_a_buffer_that_changes_in_flight() -> None:
    def program(world: FakeCommunicator) -> None:
        vector = np.zeros(3, np.float32)
        with world.flight() as flight:
            flight.receive(np.zeros(3, np.float32), 1 - world.rank, 1)
            flight.send(vector, 1 - world.rank, 1)
            vector += 1

    with pytest.raises(AssertionError, match="in flight"):
        run_world(2, program)


def test_fake_counts_an_error_as_a_death_and_raises_it() -> None:
    broken = []

    def program(world: FakeCommunicator) -> None:
        if world.rank == 1:
            raise KeyError("a mistake")
        try:
            world.allgather_bytes(b"")
        except WorldBroken:
            broken.append(world.rank)

    with pytest.raises(KeyError, match="a mistake"):
        run_world(3, program)
    assert sorted(broken) == [0, 2]


# --- real MPI -----------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_mpi_communicator(tmp_path: Path, ranks: int) -> None:
    revoking = scenarios.REVOKING if ranks > 1 else []
    names = [named(scenario) for scenario in (*scenarios.PLAIN, *revoking, *scenarios.PLAIN)]

    told = play_on_mpi(tmp_path, ranks, PROGRAM, *names)

    assert told == [[*(f"{name} ok" for name in names), "left"]] * ranks


@pytest.mark.mpi
@pytest.mark.parametrize("scenario", scenarios.LARGE, ids=named)
def test_mpi_communicator_whose_messages_are_limited(tmp_path: Path, scenario: Scenario) -> None:
    told = play_on_mpi(tmp_path, 2, PROGRAM, named(scenario))

    assert told == [[f"{named(scenario)} ok", "left"]] * 2


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("scenario", scenarios.MORTAL, ids=named)
def test_mpi_communicator_of_which_one_dies(
    tmp_path: Path, scenario: MortalScenario, ranks: int
) -> None:
    plain = [named(scenario) for scenario in scenarios.PLAIN]

    told = play_on_mpi(tmp_path, ranks, PROGRAM, named(scenario), *plain)

    survived = [f"{named(scenario)} ok", *(f"{name} ok" for name in plain), "left"]
    assert told.pop(scenarios.VICTIM) == []
    assert told == [survived] * (ranks - 1)
