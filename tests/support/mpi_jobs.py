"""Real MPI jobs of a few ranks, each of which writes down what it lived through."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.runtime.host.launchers import LaunchLine, LaunchTerms, find_mpiexec

MPI_TIMEOUT_S = 320

OVER_TCP = (
    ("btl", "self,tcp"),
    ("btl_tcp_if_include", "lo"),
    ("btl_tcp_flags", "send"),
    ("btl_tcp_eager_limit", "131072"),
    ("coll", "^han,adapt,sm"),
)
"""Settings with which ranks meet by TCP, as those of several hosts do."""


def play_on_mpi(
    directory: Path, ranks: int, program: str, *names: str, mca: Sequence[tuple[str, str]] = ()
) -> list[list[str]]:
    """Run ``program`` of this folder under mpiexec; return the lines that each rank wrote.

    It gets the directory and ``names``, and writes into the file ``rank-N`` there.  ``mca`` are
    settings of Open MPI, each a key and its value.
    """
    path = Path(__file__).with_name(program)
    line = LaunchLine(
        mpiexec=find_mpiexec(),
        ranks=ranks,
        directory=directory,
        guard=(sys.executable, str(path), str(directory), *names),
        terms=LaunchTerms(mca=tuple(map(" ".join, mca))),
    )
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            line.command(),
            env=line.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(MPI_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    files = [directory / f"rank-{rank}" for rank in range(ranks)]
    assert all(file.exists() for file in files), (directory / "output").read_text()
    return [file.read_text().splitlines() for file in files]
