"""A file system that chaos mounted for one job, and fills for a while.

Only places of chaos's own are filled: a tmpfs in a mount namespace that nobody else is in.  So no
other program on the machine meets a full disk or a full ``/dev/shm``.  The kernel removes both with
the last process of the namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.runtime.errors import UsageError

NAMESPACE_VARIABLE = "HOLDFAST_CHAOS_NAMESPACE"
"""Names the mount namespace that a process with one of its own has come from."""
SHARED_MEMORY = Path("/dev/shm")
_UNSHARE = ("unshare", "--mount", "--propagation", "private")
_FILLER = ".holdfast-chaos-filler"
_LEFT_BYTES = 1 << 16
_PIECE = bytes(1 << 16)


def is_private() -> bool:
    """Return whether this process is in a mount namespace that chaos has made."""
    return os.environ.get(NAMESPACE_VARIABLE, _namespace()) != _namespace()


def refusal() -> str | None:
    """Return why this user cannot have mounts of their own, None if they can."""
    if shutil.which(_UNSHARE[0]) is None:
        return "there is no unshare (util-linux)"
    trial = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        return f"a mount namespace is refused ({trial.stderr.strip()}); it takes root"
    return None


def enter(command: Sequence[str]) -> None:
    """Become ``command`` in a mount namespace of its own; never returns.

    Raises:
        OSError: it cannot be started.
    """
    sys.stdout.flush()
    environment = {**os.environ, NAMESPACE_VARIABLE: _namespace()}
    os.execvpe(_UNSHARE[0], [*_UNSHARE, *command], environment)


class FullPlace:
    """A tmpfs of chaos's own that can be full for a while."""

    def __init__(self, path: Path, megabytes: int) -> None:
        """Mount it.

        Raises:
            UsageError: it cannot be mounted; the message says why.
        """
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "holdfast-chaos", str(path)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode:
            raise UsageError(f"no tmpfs could be mounted at {path}: {mounted.stderr.strip()}")

    def fill(self) -> None:
        """Take all room but 64 KiB."""
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with (self.path / _FILLER).open("wb", buffering=0) as file:
            while (free := free - len(_PIECE)) >= _LEFT_BYTES:
                try:
                    file.write(_PIECE)
                except OSError:  # the job was faster
                    return

    def release(self) -> None:
        """Give the room back."""
        (self.path / _FILLER).unlink(missing_ok=True)

    def __enter__(self) -> FullPlace:
        """Return the place."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Unmount it, at the latest when the namespace ends."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)
        if self.path != SHARED_MEMORY:
            self.path.rmdir()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/mnt")
