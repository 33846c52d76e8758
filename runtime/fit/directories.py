"""Directories that all workers of a job make.

A script makes a directory for its results, and in plain Keras it is the only one that does.
Here every worker runs that line, and so does a script that begins again after a relaunch.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import Path
from typing import TypeAlias

_Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"


def share_directories(run_dir: Path, since: float) -> None:
    """Let ``os.mkdir`` succeed for a directory that another worker, or launch, has made.

    Args:
        run_dir: the run directory; in it ``os.mkdir`` stays as it is.
        since: the time of day when the job began; older directories are not the job's.

    ``os.makedirs`` and ``Path.mkdir`` make their directories through ``os.mkdir``.
    """
    plain = os.mkdir
    own = run_dir.resolve()

    @functools.wraps(plain)
    def mkdir(path: _Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        try:
            plain(path, mode, dir_fd=dir_fd)
        except FileExistsError:
            is_temporary = sys._getframe(1).f_globals.get("__name__") == "tempfile"
            if dir_fd is not None or is_temporary or not _is_of_job(path, own, since):
                raise

    os.mkdir = mkdir


def _is_of_job(path: _Path, run_dir: Path, since: float) -> bool:
    """Return whether a worker's script has made the directory since the job began."""
    found = os.stat(path)
    where = Path(os.fsdecode(path)).resolve()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_ctime >= since
        and run_dir not in (where, *where.parents)
    )
