"""Keras's downloads, by one worker at a time.

``keras.utils.get_file`` looks whether a file is there, and downloads it otherwise.  All
workers of a job ask at the same moment.  So the second one would find the half of a file
that the first one is writing, and take it for the whole.

Invariant: a worker that looks for a file sees it whole, or not at all.  The kernel ends the
turn of a worker that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras.src.utils import file_utils


def take_turns(lock: Path, tell: Callable[[str], None]) -> None:
    """Let ``get_file`` wait until no other worker is in it.

    ``lock`` is a file that all workers of the job have; only its lock is used.  ``tell``
    shows one line to the user: which address is being downloaded.

    Data sets and weights of applications come through the same function.
    """
    plain = file_utils.get_file

    @functools.wraps(plain)
    def get_file(*args: Any, **arguments: Any) -> Any:
        with _turn(lock):
            return plain(*args, **arguments)

    for module in list(sys.modules.values()):
        if vars(module).get("get_file") is plain:  # a lazy module loads nothing for it
            vars(module)["get_file"] = get_file
    file_utils.urlretrieve = _told(file_utils.urlretrieve, tell)


def _told(retrieve: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(retrieve)
    def urlretrieve(url: str, *args: Any, **arguments: Any) -> Any:
        tell(f"one worker downloads {url}, the others wait for it")
        return retrieve(url, *args, **arguments)

    return urlretrieve


@contextlib.contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Hold the lock; where the file system has none, go on as plain Keras does."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
