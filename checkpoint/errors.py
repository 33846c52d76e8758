"""Errors of the checkpoint layer."""

from __future__ import annotations

import errno
from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "free space or keep fewer checkpoints",
    errno.EDQUOT: "raise the quota or keep fewer checkpoints",
    errno.EIO: "check the disk or the network file system",
    errno.EROFS: "mount the file system for writing",
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EFBIG: "raise the limit of the size of files (`ulimit -f unlimited`)",
    errno.ENFILE: "raise the limit of open files (fs.file-max)",
    errno.ENOENT: "check that its directory still exists",
    errno.ESTALE: "check the network file system's server",
    errno.ENOTCONN: "check the network file system's server",
    errno.ETIMEDOUT: "check the network file system's server",
    errno.ENOMEM: "free memory",
    errno.ENOTDIR: "replace the link or file by a directory",
    errno.ELOOP: "replace the symbolic link by its target",
}

TRANSIENT = frozenset(
    {
        errno.ESTALE,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.ENOMEM,
    }
)
"""Errors of a call that may be gone at the next one: they say nothing about the bytes."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a call for which there was no space left, or no quota."""


class CheckpointError(Exception):
    """A checkpoint could not be saved or restored, for a ``reason`` that one sentence explains."""

    def __init__(self, sentence: str, reason: str | None = None) -> None:
        super().__init__(sentence)
        self.reason = sentence if reason is None else reason


class StateUnsupported(CheckpointError):
    """A tensor cannot be stored, or does not fit the layout."""


class SnapshotDamaged(CheckpointError):
    """A snapshot in memory is not what was copied into it."""


class StorageFailed(CheckpointError):
    """A call to the file system failed; ``errno`` says how, and ``path`` where."""

    def __init__(self, operation: str, path: Path, error: OSError) -> None:
        number = error.errno or 0
        name = errno.errorcode.get(number, "no errno")
        advice = _ADVICE.get(number, "look at the file system")
        super().__init__(f"cannot {operation} {path}: {error.strerror or error} ({name}); {advice}")
        self.errno = number
        self.path = path

    @property
    def is_full(self) -> bool:
        """Whether there was no space left, or no quota: a save may succeed once room is made."""
        return self.errno in FULL


class CommitRefused(CheckpointError):
    """The staged files are not whole, or the step already belongs to another run."""


class ManifestInvalid(CheckpointError):
    """The bytes are not a manifest that this version can trust."""


class CheckpointInvalid(CheckpointError):
    """A committed step does not verify, so nothing of it was used.

    ``is_other_runs`` says that it may be whole, and is another run's.
    """

    sentence = "checkpoint step {} is invalid: {}; use an older step with --step N"

    def __init__(self, step: int, reason: str, *, is_other_runs: bool = False) -> None:
        super().__init__(self.sentence.format(step, reason), reason)
        self.step = step
        self.is_other_runs = is_other_runs


class CheckpointUnreadable(CheckpointInvalid):
    """A committed step could not be read now: it may be whole, and the next read may succeed.

    ``errno`` is that of the call that failed, and ``path`` its file if it has one.
    """

    sentence = "checkpoint step {} could not be read: {}; it is not known to be damaged: try again"

    def __init__(self, step: int, reason: str, number: int = 0, path: Path | None = None) -> None:
        super().__init__(step, reason)
        self.errno = number
        self.path = path

    @staticmethod
    def of(step: int, failure: StorageFailed) -> CheckpointUnreadable:
        """Return the error of a call to the file system as that of a step."""
        return CheckpointUnreadable(step, str(failure), failure.errno, failure.path)

    @staticmethod
    def for_memory(step: int, wanted: str) -> CheckpointUnreadable:
        """Return the error of a step for which there was no memory."""
        reason = f"there is no memory for {wanted} (ENOMEM)"
        return CheckpointUnreadable(step, reason, errno.ENOMEM)
