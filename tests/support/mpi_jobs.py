"""Real MPI jobs of a few ranks, each of which writes down what it lived through."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from holdfast.runtime.host.launchers import OPEN_MPI, Launcher, LaunchLine
from holdfast.runtime.mpi.mpi_library import find_mpiexec

MPI_TIMEOUT_S = 320

OVER_TCP = replace(
    OPEN_MPI,
    options=(
        *(("self,tcp" if word == "self,sm" else word) for word in OPEN_MPI.options),
        *("--mca", "btl_tcp_if_include", "lo"),
    ),
)
"""Ranks that meet by TCP, as those of several hosts do."""


def play_on_mpi(
    directory: Path, ranks: int, program: str, *names: str, launcher: Launcher = OPEN_MPI
) -> list[list[str]]:
    """Run ``program`` of this folder under mpiexec; return the lines that each rank wrote.

    It gets the directory and ``names``, and writes into the file ``rank-N`` there.
    """
    path = Path(__file__).with_name(program)
    line = LaunchLine(
        mpiexec=find_mpiexec(),
        ranks=ranks,
        directory=directory,
        guard=(sys.executable, str(path), str(directory), *names),
        as_root=os.geteuid() == 0,
        launcher=launcher,
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
