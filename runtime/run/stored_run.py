"""A run as commands find it on the disk: its directory, its id, its checkpoints.

Processes of a job open the checkpoints with `owned_store`.  The head does not: it
proves whose the directory is, but loads no NumPy.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import TRANSIENT, StorageFailed
from holdfast.checkpoint.filesystem import FileSystem, LocalFileSystem
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.entries import entries_of, last_of
from holdfast.runtime.run.find_run import refuse_no_run
from holdfast.runtime.run.journal import TAIL_BYTES, JournalReader
from holdfast.runtime.run.run_directory import Ownership, RunDirectory

_MOST_STEPS = 10


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The checkpoints of a run directory; a copy without ``RUN.json`` has no ``run_id``."""

    path: Path
    store: CheckpointStore
    run_id: str | None

    @staticmethod
    def open(path: Path) -> StoredRun:
        """Return the run in a directory.

        Raises:
            UsageError: it is no run, or its record cannot be read.
        """
        refuse_no_run(path)
        record = RunDirectory(path).load_record()
        return StoredRun(path, CheckpointStore(path), record.run_id if record else None)

    def steps(self) -> tuple[int, ...]:
        """Return the committed steps, newest first.

        Raises:
            UsageError: there is no step, or the steps cannot be listed.
            RunUnreadable: they cannot be listed just now.
        """
        try:
            steps = self.store.steps()
        except StorageFailed as error:
            kind = RunUnreadable if error.errno in TRANSIENT else UsageError
            raise kind(str(error)) from error
        if not steps:
            raise UsageError(f"{self.path} holds no checkpoint: {self._why_none()}")
        return steps

    def _why_none(self) -> str:
        directory = RunDirectory(self.path)
        reader = JournalReader(directory.journal_path, tail_bytes=TAIL_BYTES)
        saved = None
        with contextlib.suppress(OSError):
            saved = last_of(entries_of(reader.read()), Checkpoint)
        if saved is None:
            return "its run has saved none yet"
        return f"its journal knows of step {saved.event.step}, which was removed"

    def step(self, wanted: int | None) -> int:
        """Return ``wanted`` if the run has that step; None means the newest step.

        Raises:
            UsageError: there is no such step.
        """
        steps = self.steps()
        if wanted is None:
            return steps[0]
        if wanted not in steps:
            shown = ", ".join(map(str, steps[:_MOST_STEPS]))
            more = " and older ones" if len(steps) > _MOST_STEPS else ""
            raise UsageError(f"{self.path} has no step {wanted}; it has {shown}{more}")
        return wanted


def owned_store(ownership: Ownership, files: FileSystem | None = None) -> CheckpointStore:
    """Return the checkpoints of a job's directory, changed only after a proof that it is its own.

    They are on other ``files`` than those of the disk if any are given.
    """
    fenced = LocalFileSystem(ownership.run_dir, ownership.prove)
    return CheckpointStore(ownership.run_dir, fenced if files is None else files)
