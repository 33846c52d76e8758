"""Errors of the checkpoint layer.

::

    CheckpointError
    ├── StateUnsupported        a tensor cannot be stored, or does not fit the layout
    ├── SnapshotDamaged         a snapshot in memory is not what was copied into it
    ├── StorageFailed           a call to the file system failed
    ├── StagingExists           this save (step, generation, attempt) has already begun
    ├── CommitRefused           the staged files are not whole, or the step is another run's
    ├── ManifestInvalid         the bytes are not a manifest that this version can trust
    ├── KeyUnusable             a key file cannot be read, is not secret, or holds another key
    ├── MendImpossible          both holders of a step together lack some of its parts
    └── CheckpointInvalid       a committed step does not verify, so nothing of it was used
        └── CheckpointUnreadable    it could not be read now; the next read may succeed
"""

from __future__ import annotations

import errno
from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "free space or keep fewer checkpoints",
    errno.EDQUOT: "raise the quota or keep fewer checkpoints",
    errno.EIO: "check the disk or the network file system",
    errno.EROFS: "mount the file system for writing",
    errno.EACCES: "give this user access to the run directory",
    errno.EPERM: "give this user access to the run directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (fs.file-max)",
    errno.ENOENT: "check that the run directory still exists",
    errno.ESTALE: "check the network file system's server",
    errno.ENOTDIR: "replace the link or file by a directory",
    errno.ELOOP: "replace the symbolic link by its target",
}

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class CheckpointError(Exception):
    """A checkpoint could not be saved or restored, for a reason that one sentence explains."""


class StateUnsupported(CheckpointError):
    """A tensor cannot be stored, or does not fit the layout."""


class SnapshotDamaged(CheckpointError):
    """A snapshot in memory is not what was copied into it."""


class StorageFailed(CheckpointError):
    """A call to the file system failed; ``errno`` says how."""

    def __init__(self, operation: str, path: Path, error: OSError) -> None:
        number = error.errno or 0
        name = errno.errorcode.get(number, "no errno")
        advice = _ADVICE.get(number, "look at the file system")
        super().__init__(
            f"cannot {operation} {path}: {error.strerror or error} ({name}); "
            f"{advice} and save or restore again"
        )
        self.errno = number

    @property
    def is_full(self) -> bool:
        """Whether there was no space left, or no quota: a save may succeed once room is made."""
        return self.errno in _FULL


class StagingExists(CheckpointError):
    """A save of this step, generation and attempt has already begun."""


class CommitRefused(CheckpointError):
    """The staged files are not whole, or the step already belongs to another run."""


class ManifestInvalid(CheckpointError):
    """The bytes are not a manifest that this version can trust."""


class KeyUnusable(CheckpointError):
    """A key file cannot be read, is not secret, or does not hold the key that is needed."""


class MendImpossible(CheckpointError):
    """A damaged step could not be made whole from a second holder of it."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"checkpoint step {step} cannot be mended: {reason}; use another holder of it, "
            "or an older step"
        )
        self.step = step


class CheckpointInvalid(CheckpointError):
    """A committed step does not verify, so nothing of it was used."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"checkpoint step {step} is invalid: {reason}; use an older step with --step N"
        )
        self.step = step
        self.reason = reason


class CheckpointUnreadable(CheckpointInvalid):
    """A committed step could not be read now: it may be whole, and the next read may succeed."""
