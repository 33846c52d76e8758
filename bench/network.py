"""The exact sum over hosts against MPI_Allreduce of the same vector over the same links.

    python bench/network.py [--layouts 2x2 2x1 3x2]

Hosts are namespaces of this machine with a bridge between them, so it needs root.  A layout is
hosts x workers on each.  ``--gbit`` gives each link a rate in each direction; 0 is no limit.  As in
``reduce.py`` each round times both, and a call of the exact sum includes the vote after it.  The
vectors that leave the first host are counted by its interface.  Two figures beside tell what is
possible: MPI_Allreduce with the vote after it, and the time that the link needs for the fewest
vectors of any sum, 2 (h - 1)/h for h hosts.

Settings of Open MPI are compared by turns with and without ``--mca btl_tcp_eager_limit 65536``.
"""

from __future__ import annotations

import argparse
import operator
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import harness
import numpy as np
from reduce import KIB, MIB, Sums, size_text, time_rounds

from holdfast.runtime.host.launchers import LaunchLine, LaunchTerms, find_mpiexec

if TYPE_CHECKING:
    from cluster import Cluster
    from mpi4py import MPI

METHODS = ("tree", "allreduce", "voted")
FRAME, PAYLOAD = 1514, 1448
"""Bytes of a full frame, and what of it is data, with TCP's timestamps."""
SIZES = (4 * KIB, 64 * KIB, 400 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
NAMES = "abcdef"
COUNTED_CALLS = 5


def main() -> None:
    options = _options()
    if options.as_rank:
        _be_rank(options)
    harness.print_heading("sums over hosts")
    print("ratio of the time to MPI_Allreduce: median (min to max); vectors sent by the first host")
    for layout in options.layouts:
        hosts, workers = map(int, layout.split("x"))
        names = [name for name in NAMES[:hosts] for _ in range(workers)]
        for gbit in options.gbit:
            link = f"{gbit:g} Gbit/s" if gbit else "no limit"
            for row in _measure(names, gbit, options):
                said = _describe(row, workers) + _floor(row, hosts, gbit)
                print(f"{layout}, {link}: {said}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", nargs="+", default=["2x2", "2x1", "3x2"])
    parser.add_argument("--gbit", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument(
        "--mca",
        nargs=2,
        action="append",
        default=[],
        metavar=("KEY", "VALUE"),
        help="a setting of Open MPI, instead of holdfast's or beside them",
    )
    parser.add_argument("--as-rank", nargs="+", metavar="HOST", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(
    names: Sequence[str], gbit: float, options: argparse.Namespace
) -> list[harness.Record]:
    """Return what the ranks have measured that live on the hosts ``names``."""
    from cluster import NETWORK, Cluster  # a rank has no need of it

    with harness.private_directory() as directory:
        launch = directory / "launch"
        launch.mkdir(mode=0o700)
        with Cluster(directory, tuple(dict.fromkeys(names))) as cluster:
            cluster.shape(round(gbit * 1e9) or None)
            rank = [
                *(sys.executable, str(Path(__file__).resolve()), "--as-rank", *names),
                *("--rounds", str(options.rounds)),
                *("--sizes", *map(str, options.sizes)),
            ]
            program = directory / "rank"
            program.write_text(_on_its_host(cluster, names, rank), encoding="utf-8")
            program.chmod(0o700)
            line = LaunchLine(
                mpiexec=find_mpiexec(),
                ranks=len(names),
                directory=launch,
                guard=(str(program),),
                terms=LaunchTerms(NETWORK, tuple(map(" ".join, options.mca))),
            )
            rows: list[harness.Record] = harness.result_of(line, cluster.entering(cluster.head))
            return rows


def _on_its_host(cluster: Cluster, names: Sequence[str], rank: Sequence[str]) -> str:
    """Return a program that each rank is, and that goes on as ``rank`` on the host of its own."""
    cases = [
        f"{number}) exec {shlex.join([*cluster.entering(name), *rank])};;"
        for number, name in enumerate(names)
    ]
    return "\n".join(["#!/bin/sh", 'case "$OMPI_COMM_WORLD_RANK" in', *cases, "esac", ""])


def _describe(row: harness.Record, workers: int) -> str:
    """Return one line about one size."""
    size, times = row["bytes"], row["seconds"]
    ratio = harness.Spread.of(harness.ratios(times["tree"], times["allreduce"]))
    tree, plain = (1e6 * harness.Spread.of(times[name]).median for name in METHODS[:2])
    added = statistics.median(map(operator.sub, times["tree"], times["allreduce"]))
    bound, holds = _judge(size, workers, ratio.median, 1e6 * added)
    sent = row["sent"]
    return (
        f"{size_text(size):>8} {tree:9.0f} us / {plain:9.0f} us = {ratio.text()}; sent "
        f"{sent['tree']:.2f} / {sent['allreduce']:.2f}; bound {bound}: "
        f"{harness.verdict(holds=holds)}"
    )


def _floor(row: harness.Record, hosts: int, gbit: float) -> str:
    """Return what no exact sum with its vote can be much faster than."""
    times = row["seconds"]
    voted = harness.Spread.of(harness.ratios(times["voted"], times["allreduce"]))
    text = f"; with the vote {voted.median:.2f}"
    if gbit:
        vectors = 2 * (hosts - 1) / hosts
        wire = 8 * vectors * row["bytes"] * FRAME / PAYLOAD / (gbit * 1e9)
        plain = harness.Spread.of(times["allreduce"]).median
        text += f"; the wire {1e6 * wire:.0f} us = {wire / plain:.2f}"
    return text


def _judge(size: int, workers: int, ratio: float, added_us: float) -> tuple[str, bool]:
    """Return the bound for vectors of ``size`` bytes, and whether it holds."""
    if size >= 4 * MIB:
        limit = 0.8 if workers > 1 else 0.95
        return str(limit), ratio <= limit
    return "1.5 or +30 us", ratio <= 1.5 or added_us <= 30


def _be_rank(options: argparse.Namespace) -> None:
    """Measure all sizes as one rank of the world, and leave."""
    from mpi4py import MPI

    from holdfast.runtime.exchange.mpi_communicator import join_world

    communicator = join_world(shrinkable=True)
    comm = MPI.COMM_WORLD
    rows = []
    for size in options.sizes:
        sums = Sums(communicator, comm.size, size // 4, hosts=options.as_rank)
        seconds = time_rounds(comm, sums, options.rounds, METHODS)
        rows.append({"bytes": size, "seconds": seconds, "sent": _vectors_sent(comm, sums, size)})
    if comm.rank == 0:
        harness.give_result(rows)
    communicator.leave()
    os._exit(0)


def _vectors_sent(comm: MPI.Intracomm, sums: Sums, size: int) -> dict[str, float]:
    """Return how many vectors leave this host in one call of each method, with all headers."""
    mine, received = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "tree": sums.total,
        "allreduce": lambda: comm.Allreduce(mine, received),
    }
    sent = {}
    for name, call in calls.items():
        comm.Barrier()
        before = _bytes_sent()
        for _ in range(COUNTED_CALLS):
            call()
        comm.Barrier()
        sent[name] = (_bytes_sent() - before) / COUNTED_CALLS / size
    return sent


def _bytes_sent() -> int:
    """Return what the interfaces of this host have sent."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    rows = [line.partition(":") for line in lines]
    return sum(int(row.split()[8]) for name, _, row in rows if name.strip() != "lo")


if __name__ == "__main__":
    main()
