"""One rank of a real MPI job that sums over hosts: it is told which host it lives on.

``argv``: the directory, the host of each rank as a letter, and the site and rank of a death, if
there is one.  A rank sums some vectors, survives the death with its peers,
sums again, and compares each sum with that of one rank.  It writes a line for each sum.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from tree_sum import tree_sum

from holdfast.recovery.reduction import FloatVector, PartialSums, maximal_nodes
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import WorkerId, World, adopt, assign
from holdfast.runtime.exchange.membership import Communicator, Flight, Membership, WorldBroken
from holdfast.runtime.exchange.memory import SharedVectors
from holdfast.runtime.exchange.mpi_communicator import join_world
from holdfast.runtime.exchange.sums import Exchange

LIFETIME_S = 300

SIZES = {Work.TRAIN: 1_300_003, Work.EVALUATE: 1003}
"""Several buckets in pieces, and one message."""

MICROBATCHES = 7

WAITS_BEFORE_DEATH = 4
"""In a flight: places are known then, and roots and totals travel."""


class Sums:
    """A rank's part in sums of both sizes, in a world that may lose members."""

    def __init__(self, communicator: Communicator, hosts: str, dies: Callable[[str], None]) -> None:
        world = World(1, tuple(map(WorkerId, range(communicator.size))), communicator.size)
        host_of = dict(zip(world.workers, hosts, strict=True))
        me = world.workers[communicator.rank]
        self._dies = dies
        self._flights = 0
        self._membership = Membership(me, world, communicator, time.monotonic, host_of)
        self._assignment = assign(MICROBATCHES, world)
        self._vectors = {
            work: SharedVectors.create(size, MICROBATCHES + 1) for work, size in SIZES.items()
        }
        self._partial = {
            work: PartialSums(MICROBATCHES, vectors.allocate)
            for work, vectors in self._vectors.items()
        }
        self._exchange = Exchange(self._membership, self._vectors, MICROBATCHES)

    @property
    def world(self) -> World:
        return self._membership.world

    @property
    def way(self) -> str:
        """Say how the sum of just now was made."""
        return "by pieces" if self._flights else "without pieces"

    def join(self) -> None:
        self._membership.join(0)
        self._exchange.map_peers()

    def total(self, work: Work) -> bytes:
        """Return the bytes of the sum of one update, after its vote."""
        owned = self._assignment.owned_by(self._membership.me)
        partial = self._partial[work]
        for m in partial.missing(owned):
            leaf = partial.buffer()
            leaf[:] = leaf_of(m, SIZES[work])
            partial.add_leaf(m, leaf)
        self._dies("before")
        roots = partial.take(maximal_nodes(owned, MICROBATCHES))
        communicator = self._membership.communicator
        before = communicator.flights
        try:
            total = self._exchange.sum(work, roots, self._assignment, lambda: self._dies("posted"))
        except WorldBroken:
            communicator.agree(0)
            raise
        self._flights = communicator.flights - before
        self._dies("vote")
        if not communicator.agree(1):
            raise WorldBroken("the exchange of a peer failed")
        told = total.vector.tobytes()
        self._dies("after")
        partial.clear()
        return told

    def repair(self) -> None:
        """Go on without the dead; survivors that die meanwhile are met as well."""
        while True:
            try:
                self._membership.repair(0, lambda: None)
                world = self._membership.world
                self._assignment = adopt(self._assignment, world, self._membership.host_of)
                self._exchange.map_peers()
            except WorldBroken:
                continue
            return


class Watched:
    """A communicator that counts its flights, and may let its rank die within one."""

    def __init__(self, communicator: Communicator, dies: Callable[[str], None]) -> None:
        self._communicator = communicator
        self._dies = dies
        self.flights = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def flight(self) -> Flight:
        self.flights += 1
        return WatchedFlight(self._communicator.flight(), self._dies)

    def shrink(self) -> Communicator:
        return Watched(self._communicator.shrink(), self._dies)


class WatchedFlight:
    """A flight whose rank may die while buckets travel in both directions."""

    def __init__(self, flight: Flight, dies: Callable[[str], None]) -> None:
        self._flight = flight
        self._dies = dies
        self._waits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flight, name)

    def __enter__(self) -> WatchedFlight:
        self._flight.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._flight.__exit__(*error)

    def wait(self, ticket: int) -> None:
        self._waits += 1
        if self._waits == WAITS_BEFORE_DEATH:
            self._dies("flight")
        self._flight.wait(ticket)


def leaf_of(microbatch: int, size: int) -> FloatVector:
    """Return a leaf whose sums depend on every pair that is added."""
    dice = np.random.default_rng(microbatch)
    scale = np.float32(10) ** np.float32(dice.integers(-4, 5))
    return dice.standard_normal(size, np.float32) * scale


def play(sums: Sums, results: TextIO) -> None:
    """Sum until there were three rounds without a death, and write a line for each sum."""
    expected = {
        work: tree_sum([leaf_of(m, size) for m in range(MICROBATCHES)]).tobytes()
        for work, size in SIZES.items()
    }
    rounds = 0
    while rounds < 3:
        try:
            for work in SIZES:
                total = sums.total(work)
                verdict = "right" if total == expected[work] else "wrong"
                results.write(f"{work.name} {sums.way} {verdict} of {sums.world.size}\n")
            rounds += 1
        except WorldBroken:
            sums.repair()
            rounds = 0


def main(directory: Path, hosts: str, site: str = "", victim: str = "") -> None:
    signal.alarm(LIFETIME_S)  # its default action ends a process even inside a hanging MPI call
    world = join_world(shrinkable=True)
    rank, rounds = world.rank, [0]

    def dies(at: str) -> None:
        """Die in the second round of sums, so that some have gone well."""
        rounds[0] += at == site
        if at == site and str(rank) == victim and rounds[0] > len(SIZES):
            os.kill(os.getpid(), signal.SIGKILL)

    with (directory / f"rank-{rank}").open("w", buffering=1) as results:
        try:
            sums = Sums(Watched(world, dies), hosts, dies)
            sums.join()
            play(sums, results)
            world.leave()
            results.write("left\n")
        except BaseException:
            results.write(traceback.format_exc())
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
