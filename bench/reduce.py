"""The exact sum over microbatches against MPI_Allreduce of the same vector in the same run.

    python bench/reduce.py [--ranks 2 4] [--rounds 15] [--sizes 4096 ...]

Each round times calls of the tree exchange, of ``MPI_Allreduce`` with two buffers and of
``MPI_Allreduce`` in place, one after the other.  A ratio compares times of one round.
A call of the exchange includes the vote after it, because only then is the sum whole;
``MPI_Allreduce`` has no vote.  The bound is held against the call with two buffers,
which, like the exchange, leaves what it sums up unchanged.  With ``--messages`` the
ranks exchange messages, as they do between hosts, instead of sharing memory.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import harness
import numpy as np

from holdfast.recovery.reduction import FloatVector, plan_reduction
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import WorkerId, World, assign
from holdfast.runtime.exchange.membership import Communicator, Membership
from holdfast.runtime.exchange.memory import SharedVectors
from holdfast.runtime.exchange.sums import Exchange

if TYPE_CHECKING:
    from mpi4py import MPI

KIB, MIB = 1024, 1024 * 1024
SIZES = (4 * KIB, 64 * KIB, 400 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
BLOCK_S = 0.04
"""Time of one method in one round: long against a scheduler's tick, short against load."""

METHODS = ("tree", "allreduce", "in_place")


def main() -> None:
    options = _options()
    if options.as_rank:
        _be_rank(options)
    harness.print_heading("exact reduce")
    print("ratio of the time to MPI_Allreduce (and to MPI_Allreduce in place): median (min to max)")
    for ranks in options.ranks:
        for microbatches in (ranks, 2 * ranks):
            arguments = [
                *("--as-rank", "--microbatches", str(microbatches)),
                *("--rounds", str(options.rounds)),
                *("--sizes", *map(str, options.sizes)),
                *(("--messages",) if options.messages else ()),
            ]
            for row in harness.run_ranks(ranks, arguments):
                print(f"{ranks} ranks, M = {microbatches}: {_describe(row)}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--messages", action="store_true", help="share no memory")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--microbatches", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _describe(row: harness.Record) -> str:
    """Return one line about one size."""
    size, times = row["bytes"], row["seconds"]
    plain = harness.Spread.of(harness.ratios(times["tree"], times["allreduce"]))
    in_place = harness.Spread.of(harness.ratios(times["tree"], times["in_place"]))
    micros = {name: 1e6 * harness.Spread.of(times[name]).median for name in METHODS}
    bound, holds = _judge(size, plain.median, micros["tree"] - micros["allreduce"])
    return (
        f"{size_text(size):>8} {micros['tree']:9.0f} us / {micros['allreduce']:9.0f} us = "
        f"{plain.text()}, in place {in_place.text()}; bound {bound}: "
        f"{harness.verdict(holds=holds)}"
    )


def _judge(size: int, ratio: float, added_us: float) -> tuple[str, bool]:
    """Return the bound for vectors of ``size`` bytes, and whether it holds."""
    for least, limit in ((64 * MIB, 0.8), (16 * MIB, 1.0), (4 * MIB, 1.1)):
        if size >= least:
            return f"{limit:.1f}", ratio <= limit
    return "1.5 or +20 us", ratio <= 1.5 or added_us <= 20


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def _be_rank(options: argparse.Namespace) -> None:
    """Measure all sizes as one rank of the world, and leave."""
    from mpi4py import MPI

    from holdfast.runtime.exchange.mpi_communicator import join_world

    communicator = join_world(shrinkable=True)
    comm = MPI.COMM_WORLD
    rows = []
    for size in options.sizes:
        sums = Sums(communicator, options.microbatches, size // 4, is_shared=not options.messages)
        rows.append({"bytes": size, "seconds": time_rounds(comm, sums, options.rounds)})
    if comm.rank == 0:
        harness.give_result(rows)
    communicator.leave()
    os._exit(0)


class Sums:
    """The exchange of one size, as the trainer makes it, and this rank's roots."""

    def __init__(
        self,
        communicator: Communicator,
        microbatches: int,
        floats: int,
        *,
        is_shared: bool = True,
        hosts: Sequence[str] = (),
    ) -> None:
        """Fill the roots; ``hosts`` names the host of each rank if there are several."""
        size, rank = communicator.size, communicator.rank
        world = World(1, tuple(WorkerId(worker) for worker in range(size)), size)
        self._assignment = assign(microbatches, world)
        plan = plan_reduction(self._assignment, world, microbatches)
        random = np.random.default_rng(rank)
        vectors = SharedVectors.create(floats, microbatches)
        self.roots = [vectors.allocate() for root in plan.roots if root.rank == rank]
        for vector in self.roots:
            vector[:] = random.standard_normal(floats, np.float32)
        host_of = dict(zip(world.workers, hosts, strict=True)) if hosts else {}
        me = WorkerId(rank)
        membership = Membership(me, world, communicator, time.monotonic, host_of)
        self._exchange = Exchange(membership, {Work.TRAIN: vectors}, microbatches)
        if is_shared:
            self._exchange.map_peers()
        self._agree = communicator.agree

    def vote(self) -> None:
        """Vote as after a sum."""
        self._agree(1)

    def total(self) -> FloatVector:
        """Return the sum, after the vote that makes it whole."""
        total = self._exchange.sum(Work.TRAIN, self.roots, self._assignment)
        self.vote()
        return total.vector


def time_rounds(
    comm: MPI.Intracomm, sums: Sums, rounds: int, methods: Sequence[str] = METHODS
) -> dict[str, list[float]]:
    """Return, for each of ``methods``, the seconds of one call in each round."""
    from mpi4py import MPI

    mine = np.sum(sums.roots, axis=0, dtype=np.float32)
    received, in_place = np.empty_like(mine), mine.copy()

    def voted() -> None:
        comm.Allreduce(mine, received)
        sums.vote()

    calls: dict[str, Callable[[], object]] = {
        "tree": sums.total,
        "allreduce": lambda: comm.Allreduce(mine, received),
        "in_place": lambda: comm.Allreduce(MPI.IN_PLACE, in_place),
        "voted": voted,
    }
    comm.Allreduce(mine, received)
    assert np.allclose(sums.total(), received, rtol=1e-3, atol=1e-4)
    once = max(_time_block(comm, calls[name], 2) for name in methods)
    repeats = comm.bcast(max(2, min(2000, round(BLOCK_S / once))))
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(rounds):
        in_place[:] = mine
        for name in methods if turn % 2 else reversed(methods):
            seconds[name].append(_time_block(comm, calls[name], repeats))
    return seconds


def _time_block(comm: MPI.Intracomm, call: Callable[[], object], repeats: int) -> float:
    """Return the seconds that all ranks together need for one call."""
    call()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    comm.Barrier()
    return (time.perf_counter() - begin) / repeats


if __name__ == "__main__":
    main()
