"""A rank that loses a peer and looks, at its end, for what has arrived too late.

``argv``: a folder, whether connections to lost peers are ended.  The ranks exchange vectors until
the file ``end`` is there.  After a repair each keeps a copy of what the broken exchange was to
fill.  At the end it writes how many bytes have changed since.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

from holdfast.runtime.exchange import mpi_communicator
from holdfast.runtime.exchange.membership import WorldBroken
from holdfast.runtime.exchange.mpi_communicator import MpiCommunicator, join_world

FLOATS = 1 << 20
LIFETIME_S = 300


def main(folder: Path, *, ends_connections: bool) -> None:
    signal.alarm(LIFETIME_S)  # its default action ends a process even inside a hanging MPI call
    if not ends_connections:
        mpi_communicator.end_connections = lambda *_: frozenset()
    world = join_world(shrinkable=True)
    me, step, is_over = world.rank, 0, False
    copies: list[np.ndarray] = []
    while not is_over:
        try:
            exchange(world, me, step)
            answer = 1 if (folder / "end").exists() else 3
        except WorldBroken:
            answer = 0
        try:
            agreed = world.agree(answer)
        except WorldBroken:
            agreed = 0
        if agreed & 1:
            step += 1
            is_over = not agreed & 2
            if me == 0:
                (folder / f"step-{step}").touch()
        else:
            world = repaired(world)
            copies += [kept.copy() for kept in mpi_communicator._QUARANTINE[len(copies) :]]
            (folder / f"repaired-{me}").touch()
    changed = sum(
        int((kept != copy).sum()) * kept.itemsize
        for kept, copy in zip(mpi_communicator._QUARANTINE, copies, strict=True)
    )
    draft = folder / f"draft-{me}"
    draft.write_text(f"{len(copies)} {changed}")
    draft.rename(folder / f"late-{me}")
    world.leave()
    os._exit(0)


def exchange(world: MpiCommunicator, me: int, step: int) -> None:
    """Send a vector to each peer, and receive theirs; all floats of a step differ from the last."""
    peers = [peer for peer in range(world.size) if peer != world.rank]
    mine = np.full(FLOATS, 10 * step + me, np.float32)
    arrivals = [np.zeros(FLOATS, np.float32) for _ in peers]
    with world.flight() as flight:
        tickets = [
            flight.receive(array, peer, 1) for peer, array in zip(peers, arrivals, strict=True)
        ]
        for peer in peers:
            flight.send(mine, peer, 1)
        for ticket in tickets:
            flight.wait(ticket)


def repaired(world: MpiCommunicator) -> MpiCommunicator:
    while True:
        world.revoke()
        try:
            world = world.shrink()
            world.agree(1)
        except WorldBroken:
            continue
        return world


if __name__ == "__main__":
    main(Path(sys.argv[1]), ends_connections=sys.argv[2] == "True")
