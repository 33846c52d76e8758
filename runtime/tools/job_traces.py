"""What one job leaves: its processes and files, found by a mark, and nothing of another job.

Each process of the job inherits a mark in the environment, and a ``TMPDIR`` of its own.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.runtime.system.owned_directory import is_held
from holdfast.runtime.system.processes import marked_processes, signal_marked, wait_all_ended

ENDS_WITHIN_S = 30.0
"""How long processes may outlive ``holdfast run``: the kernel takes a moment for killed ones."""

SHARED_MEMORY = Path("/dev/shm")


class JobTraces:
    """The mark of one job, and what bears it."""

    def __init__(self, variable: str) -> None:
        """Make a mark, the value of ``variable``, and a scratch directory."""
        self.mark = f"{variable}={secrets.token_hex(8)}"
        self.scratch = Path(tempfile.mkdtemp(prefix="holdfast-job-"))
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return ``base`` with the mark, for the first process of the job."""
        name, _, value = self.mark.partition("=")
        return {**base, name: value, "TMPDIR": str(self.temporary)}

    def processes(self) -> dict[int, str]:
        """Return the name of every living process of the job, as ``ps`` shows it, by process id."""
        return marked_processes(self.mark)

    def leftovers(self, clients: Iterable[int]) -> tuple[str, ...]:
        """Name each process and file that exists now outside the run directory."""
        processes = [f"process {pid} {name}" for pid, name in self.processes().items()]
        kept = self.temporary.iterdir() if self.temporary.is_dir() else ()
        files = (*_shared_memory(clients), *kept)
        return (*processes, *map(str, files))

    def kill_all(self) -> None:
        """SIGKILL every process of the job, and wait until all have ended."""
        while alive := self.processes():
            for pid in alive:
                signal_marked(pid, self.mark, signal.SIGKILL)
            wait_all_ended(alive, ENDS_WITHIN_S)

    def remove_files(self, clients: Iterable[int]) -> None:
        """Remove the scratch directory, and the shared memory of these clients."""
        for directory in (*_shared_memory(clients), self.scratch):
            shutil.rmtree(directory, ignore_errors=True)


def _shared_memory(clients: Iterable[int]) -> list[Path]:
    """Return what these clients have left; a living one may have got the number of a dead one.

    A directory that is held has a living process, which is named by itself if it is the job's.
    """
    found = (path for pid in set(clients) for path in SHARED_MEMORY.glob(f"holdfast-{pid}-*"))
    return sorted(path for path in found if not is_held(path))
