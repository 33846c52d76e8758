"""The trial that tells whether an MPI survives a death: run by mpiexec, two ranks.

Rank 1 kills itself.  Rank 0 must see that as an error, revoke the communicator, shrink it
to itself and agree on it.  These are the four operations of a recovery in place.  The
verdict goes to the file named on the command line, because mpiexec's exit code says
nothing once fault tolerance is on.

This file and the communicator are the only ones that import mpi4py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

LIFETIME_S = 60
"""No rank of a trial outlives this; every caller waits for less."""


def main(verdict_path: Path) -> None:
    """Play this rank's part, write the verdict, and leave without ``MPI_Finalize``."""
    # The default action of SIGALRM ends a process even inside a hanging MPI call.
    signal.alarm(LIFETIME_S)
    reason = _trial()
    _write_verdict(verdict_path, reason)
    os._exit(0)


def _trial() -> str:
    """Return the reason why this MPI is not fit, or an empty text if it is fit."""
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"mpi4py cannot load an MPI library: {error}"
    world = MPI.COMM_WORLD
    if world.size != 2:
        library = MPI.Get_library_version().partition(",")[0].strip()
        return f"mpi4py uses {library}, which is not the MPI of this mpiexec"
    if world.rank == 1:
        world.Barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    return _survive(world)


def _survive(world: MPI.Intracomm) -> str:
    from mpi4py import MPI

    try:
        world.Barrier()  # both have started; the other's death may already show here
        world.Barrier()
    except MPI.Exception:
        pass
    else:
        return "a barrier with a dead rank succeeded"
    try:
        world.Revoke()
        survivors = world.Shrink()
        is_agreed = survivors.Agree(1) == 1
    except (MPI.Exception, NotImplementedError) as error:
        return f"the survivor could not revoke, shrink and agree: {error or type(error).__name__}"
    if survivors.size != 1 or not is_agreed:
        return f"shrinking left {survivors.size} ranks of 1, agreement {is_agreed}"
    return ""


def _write_verdict(path: Path, reason: str) -> None:
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"ulfm": not reason, "reason": reason}), encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
