"""One rank of a real MPI job that plays scenarios: run by mpiexec with a results directory.

``argv``: the directory, then the names of the scenarios in their order.  Each
rank writes a line for every scenario that it lived through.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

import scenarios

from holdfast.runtime.exchange.membership import Communicator
from holdfast.runtime.exchange.mpi_communicator import join_world

LIFETIME_S = 300


def main(directory: Path, names: list[str]) -> None:
    signal.alarm(LIFETIME_S)  # its default action ends a process even inside a hanging MPI call
    world = join_world(shrinkable=True)
    first: Communicator = world
    last: Communicator = world
    with (directory / f"rank-{world.rank}").open("w", buffering=1) as results:
        for name in names:
            try:
                last = play(name, last)
            except BaseException:
                results.write(f"{name}: {traceback.format_exc()}")
                break
            results.write(f"{name} ok\n")
        else:
            first.leave()
            results.write("left\n")
    os._exit(0)


def play(name: str, world: Communicator) -> Communicator:
    scenario = getattr(scenarios, name)
    if scenario in scenarios.MORTAL:
        return scenario(world, lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[no-any-return]
    return scenario(world)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
