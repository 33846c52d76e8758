"""The checkpoints of a run directory, changed only after a proof that it is still this job's.

It stands apart from the proof: the supervisor proves too, and loads no NumPy.
"""

from __future__ import annotations

from holdfast.checkpoint.disk.filesystem import FileSystem, LocalFileSystem
from holdfast.checkpoint.format.signature import SigningKey
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.run.ownership import Ownership


def owned_store(
    ownership: Ownership, key: SigningKey | None, files: FileSystem | None = None
) -> CheckpointStore:
    """Return the checkpoints of a run, on other files than those of the disk if given."""
    fenced = LocalFileSystem(ownership.run_dir, ownership.prove)
    return CheckpointStore(ownership.run_dir, fenced if files is None else files, key)
