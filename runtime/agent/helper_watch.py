"""Who watches the watchers: guards, mpiexec, pool and writer that are stopped are killed.

| stopped | and this follows |
|---|---|
| a guard | the death of its worker |
| mpiexec | the end of its launch; the job is relaunched |
| the pool, the host's writer | another one is started; no worker dies |

A stop that ends within the limit costs nothing.  Beyond it nobody comes back: a SIGKILL ends
a stopped process, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.runtime.agent.hosted_worker import HostedWorker
from holdfast.runtime.agent.standing_still import StandingStill
from holdfast.runtime.agent.worker_host import WorkerHost
from holdfast.runtime.mpiexec.mpi_host import MpiHost


class HelperWatch:
    """Looks at the processes around the workers, and ends those that stand still."""

    def __init__(self, host: WorkerHost, mpi: MpiHost, limit_s: float) -> None:
        self._host = host
        self._mpi = mpi
        self._still = StandingStill(limit_s)

    def look(self, now: float) -> None:
        """Look once; a helper that has been stopped for longer than the limit is killed."""
        ends = self._ends()
        for pid, seconds in self._still.look(ends, now).items():
            ends[pid](f"stopped for {seconds:.1f} s")

    def _ends(self) -> dict[int, Callable[[str], None]]:
        """Return the way to end each helper that runs, by its process id."""
        ends: dict[int | None, Callable[[str], None]] = {
            self._mpi.pid: self._end_launch,
            self._host.pool.pid: self._host.pool.replace,
            self._host.writer.pid: self._host.writer.replace,
        }
        for hosted in self._host.workers:
            if hosted.guard is not None:
                ends[hosted.guard.pid] = partial(_end_worker, hosted)
        return {pid: end for pid, end in ends.items() if pid is not None}

    def _end_launch(self, why: str) -> None:
        self._host.kill_all(f"mpiexec {why}")
        self._mpi.kill()


def _end_worker(hosted: HostedWorker, why: str) -> None:
    hosted.kill(f"guard {why}")
