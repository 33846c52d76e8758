"""What all benchmarks share: ratios with their spread, bounds, and starting ranks or jobs.

A benchmark compares holdfast with a peer in the same run, in rounds that take turns,
so that noise of the machine hits both.  It prints the median, minimum and maximum of
the rounds and whether the median holds its bound; it never fails because it does not.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.host.launchers import LaunchLine
from holdfast.runtime.mpi.mpi_library import find_mpiexec
from holdfast.runtime.system.processes import kill_tree
from holdfast.testing import JobRequest, start_job

RANKS_TIMEOUT_S = 600.0
JOB_TIMEOUT_S = 300.0
RESULT_VARIABLE = "HOLDFAST_BENCH_RESULT"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of the rounds."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return the spread of ``values``."""
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Return ``median (minimum to maximum)``."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def ratios(ours: Sequence[float], peers: Sequence[float]) -> list[float]:
    """Return what each round of ours takes in units of the peer's round beside it."""
    return [mine / theirs for mine, theirs in zip(ours, peers, strict=True)]


def verdict(*, holds: bool) -> str:
    """Return the word that ends a line of results."""
    return "holds" if holds else "MISSES"


def print_heading(title: str) -> None:
    """Print the title of the benchmark, and the machine."""
    load = os.getloadavg()[0]
    print(f"{title}: {os.cpu_count()} cores, {_processor()}, load {load:.1f} at the start")


def run_ranks(ranks: int, arguments: Sequence[str]) -> Any:
    """Run this program as ``ranks`` ranks; return what rank 0 gave to ``give_result``.

    Raises:
        RuntimeError: the ranks ended without a result; the message holds what they wrote.
    """
    with private_directory() as directory:
        result = directory / "result.json"
        line = LaunchLine(
            mpiexec=find_mpiexec(),
            ranks=ranks,
            directory=directory,
            guard=(sys.executable, sys.argv[0], *arguments),
            as_root=os.geteuid() == 0,
        )
        extra = {RESULT_VARIABLE: str(result), "OMP_NUM_THREADS": "1"}
        environment = line.environment(os.environ, **extra)
        output = _run(line.command(), environment, RANKS_TIMEOUT_S)
        if not result.exists():
            raise RuntimeError(f"{ranks} ranks ended without a result:\n{output}")
        return json.loads(result.read_text(encoding="utf-8"))


def give_result(value: object) -> None:
    """Hand a JSON value from rank 0 to the program that called ``run_ranks``."""
    Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(value), encoding="utf-8")


def run_job(request: JobRequest, timeout_s: float = JOB_TIMEOUT_S) -> list[Record]:
    """Run a job to its end; return its journal.

    The first record is the benchmark's own: ``{"event": "started", "now": ...}``.

    Raises:
        RuntimeError: the job did not end with exit code 0.
    """
    started = {"event": "started", "now": time.monotonic()}
    with start_job(request, timeout_s=timeout_s) as running:
        job = running.wait()
    if job.exit_code != 0:
        raise RuntimeError(f"{request.command()} ended with {job.exit_code}:\n{job.stderr}")
    return [started, *job.journal]


def first(records: Sequence[Record], event: str, *, after: float = 0.0) -> Record:
    """Return the first record of ``event`` later than ``after`` (monotonic seconds).

    Raises:
        RuntimeError: there is none.
    """
    for record in records:
        if record["event"] == event and record["now"] > after:
            return record
    raise RuntimeError(f"the journal has no {event!r} after {after:.3f}")


@contextmanager
def private_directory() -> Iterator[Path]:
    """Make a directory, in memory where there is /dev/shm, that is gone afterwards."""
    memory = Path("/dev/shm")
    parent = str(memory) if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="holdfast-bench-", dir=parent, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def _run(command: Sequence[str], environment: dict[str, str], timeout_s: float) -> str:
    """Run a command to its end, and kill its leftover processes; return its output."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        kill_tree(process.pid)
        process.wait()
        raise
    return output


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
