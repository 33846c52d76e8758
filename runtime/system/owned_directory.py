"""Private directories of jobs in memory, and those whose job is dead.

The OOM killer or the end of a cgroup kills a job as a whole.  It cannot remove its directory in
``/dev/shm`` then, and memory stays taken until the machine starts again.  So each later job of the
same user looks for such directories.

Invariant: each process that a job needs to go on holds a lock on the directory's marker.  The
kernel lets go of it when the process ends.  A directory whose marker nobody holds belongs to
nobody.  The marker gets its name when it is locked already, so a directory that is just being made
is never taken for a dead one.  It names its host: a ``TMPDIR`` may lie on a file server whose locks
hold on one host only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOCKET_NAME = "agent.sock"
"""Where the agent of a job listens, in its directory."""

_MARKER = "owned"
_LONGEST_NAME = 256
_NAME = re.compile(r"holdfast-\d+-\w{8}")


def make_owned_directory(place: str | None) -> Path:
    """Make a directory of mode 0700 in ``place``, hold it until this process ends, return it."""
    directory = Path(tempfile.mkdtemp(prefix=f"holdfast-{os.getpid()}-", dir=place))
    _mark(directory)
    return directory


def make_again(directory: Path) -> None:
    """Make the directory of a living job anew, or its marker, if that was removed; hold it.

    systemd empties ``/dev/shm`` of a user who logs out, and removes old files in ``/tmp``.

    Raises ``OSError`` if it cannot be made, or somebody else has made it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own_directory(directory):
        raise PermissionError(errno.EPERM, "another user has made it", str(directory))
    if not (directory / _MARKER).exists():
        _mark(directory)


def _mark(directory: Path) -> None:
    unnamed = directory / f"{_MARKER}.new"
    marker = os.open(unnamed, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # without locks, as on Lustre, nobody may call it dead
        fcntl.flock(marker, fcntl.LOCK_SH)
        os.write(marker, _host())
        unnamed.rename(directory / _MARKER)


def hold(directory: Path) -> None:
    """Hold a directory of a job until this process ends; one without a marker needs no holder."""
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(directory / _MARKER, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_SH)


def is_held(directory: Path) -> bool:
    """Return whether a living process on this host holds the directory."""
    try:
        marker = _open_marker(directory)
    except OSError:
        return False
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(marker)
    return False


def remove_dead_directories(*places: str) -> tuple[Path, ...]:
    """Remove directories in ``places`` that this user's dead jobs have left; return them."""
    return tuple(path for place in places for path in _candidates(place) if _remove_if_dead(path))


def _candidates(place: str) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in sorted(Path(place).iterdir()):
            if _NAME.fullmatch(path.name) and _is_own_directory(path):
                yield path


def _is_own_directory(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _remove_if_dead(directory: Path) -> bool:
    try:
        marker = _open_marker(directory)
    except OSError:  # not one of ours, not yet, or no more
        return False
    try:
        if os.read(marker, _LONGEST_NAME) != _host():
            return False
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()
    finally:
        os.close(marker)


def _open_marker(directory: Path) -> int:
    return os.open(directory / _MARKER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _host() -> bytes:
    return os.fsencode(os.uname().nodename)
