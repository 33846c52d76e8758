"""The stamp of a file: a word that is another one once anybody has changed the file.

The time of a change (``ctime``) is the kernel's own, and no user can set it.  So a stamp needs no
byte of the file.
"""

from __future__ import annotations

import os


def stamp_of(path: str) -> str:
    """Return the stamp of a file or a directory; that of one that is not there is ``-``."""
    try:
        found = os.stat(path)
    except OSError:
        return "-"
    return f"{found.st_size}.{found.st_ino}.{found.st_mtime_ns}.{found.st_ctime_ns}"


def is_unchanged(line: str) -> bool:
    """Return whether a file has the stamp that stands before its path."""
    stamp, _, path = line.partition(" ")
    return stamp_of(path) == stamp


def is_kept(line: str) -> bool:
    """Return whether a file is there, and has the bytes in number that stand before its path."""
    size, _, path = line.partition(" ")
    try:
        return os.stat(path).st_size >= int(size)
    except (OSError, ValueError):
        return False
