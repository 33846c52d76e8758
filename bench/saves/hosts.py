"""What several hosts gain: each writes a share of a save, and reads a part of a checkpoint.

Each host has a link or a disk of its own, which moves so many bytes a second at most.  Here that
is a file system that waits after each call.  Hosts are threads, so they share two cores.  What a
restore sends over the network afterwards is not part of its time.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.checkpoint.filesystem import FileSystem, PacedFileSystem
from holdfast.checkpoint.reader import StateReader
from holdfast.checkpoint.shares import written_by
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import Committer
from saves.committed_save import KEEP_ALL, RUN_ID, CopiedState, commit_shares, committer, plan_of
from saves.state import State

SAVE, RESTORE = "save", "read and verify"


def measure_hosts(
    state: State, directory: Path, rounds: int, hosts: int, bytes_per_s: float
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of saves and of reads, by the hosts that take part, one and several."""
    seconds: dict[str, dict[str, list[float]]] = {SAVE: {}, RESTORE: {}}
    for count in (1, hosts):
        made = _Hosts(state, directory / f"{count}-hosts", count, bytes_per_s)
        name = "1 host" if count == 1 else f"{count} hosts"
        seconds[SAVE][name] = [made.save(turn + 1) for turn in range(rounds)]
        seconds[RESTORE][name] = [made.read(rounds) for _ in range(rounds)]
        made.close()
    return seconds


class _LimitedFileSystem(PacedFileSystem):
    """A file system that takes and gives so many bytes a second, by any number of threads."""

    def __init__(self, root: Path, bytes_per_s: float) -> None:
        super().__init__(root, bytes_per_s)
        self._turn = threading.Lock()

    def write(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self._turn:
            began = self._clock()
            count = FileSystem.write(self, handle, buffers, offset)
            self._free_at = max(self._free_at, began) + count / self._bytes_per_s
            time.sleep(max(0.0, self._free_at - self._clock()))
        return count

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        with self._turn:
            return super().read(handle, buffer, offset)


class _Hosts:
    """Hosts that have copied their parts of a state, with a committer each."""

    def __init__(self, state: State, run_dir: Path, count: int, bytes_per_s: float) -> None:
        self._run_dir = run_dir
        self._files = [_LimitedFileSystem(run_dir, bytes_per_s) for _ in range(count)]
        self._copied = [CopiedState(state, host, count) for host in range(count)]
        plan = plan_of(run_dir, state, KEEP_ALL, count)
        self._committers = [committer(plan, files=files) for files in self._files]
        self._threads = ThreadPoolExecutor(count)

    def save(self, step: int) -> float:
        """Save what was copied as ``step``; return the seconds until it is committed."""
        for copied in self._copied:
            copied.copy(step)
        begin = time.perf_counter()
        shares = list(self._threads.map(CopiedState.write, self._copied, self._committers))
        commit_shares(self._first, step, shares)
        return time.perf_counter() - begin

    def read(self, step: int) -> float:
        """Return the seconds until all hosts have read and verified their parts of ``step``."""
        begin = time.perf_counter()
        list(self._threads.map(lambda host: self._read_part(host, step), range(len(self._files))))
        return time.perf_counter() - begin

    def close(self) -> None:
        """Remove the files, and give the memory back."""
        self._threads.shutdown()
        for each in self._committers:
            each.close(0.0)
        for copied in self._copied:
            copied.close()
        shutil.rmtree(self._run_dir)

    @property
    def _first(self) -> Committer:
        return self._committers[0]

    def _read_part(self, host: int, step: int) -> None:
        store = CheckpointStore(self._run_dir, self._files[host])
        reader = StateReader(store, step, RUN_ID)
        reader.allocate()
        reader.read(written_by(host, len(self._files), reader.manifest.writers))
