"""A call on a file of a run that has failed: for good, or only just now.

"Just now" says nothing against the run: the same request may succeed when the file system answers
again.  A job that may not begin then ends with the exit code of one that can be run again.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path

from holdfast.checkpoint.errors import FULL, TRANSIENT
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.run.own_file import is_listed, read_at_most
from holdfast.runtime.system.witnessed_time import Bound

REMEMBERS_S = 60.0
"""How long a client of NFS remembers at most that there is no such name (``acdirmax``)."""
_NAP_S = 0.2


def refusal(path: Path, error: OSError, otherwise: str) -> UsageError:
    """Return the error of a request that cannot go on without ``path``.

    ``otherwise`` is the sentence for a call that would fail again.
    """
    if error.errno not in TRANSIENT | FULL:
        return UsageError(otherwise)
    name = errno.errorcode[error.errno]
    if error.errno in FULL:
        return RunUnreadable(
            f"{path} cannot be written: {error.strerror or error} ({name}); nothing was begun: "
            "free space there, then run again"
        )
    return RunUnreadable(
        f"{path} does not answer just now: {error.strerror or error} ({name}); nothing is known "
        "to be damaged: run again when the file system answers"
    )


def read_late(path: Path, limit_bytes: int) -> bytes:
    """Return the contents of a file, of one that is listed and not yet found after a wait.

    Raises what ``read_at_most`` raises, and ``OSError`` of ESTALE if the wait was in vain.
    """
    bound = Bound(REMEMBERS_S)
    while True:
        try:
            return read_at_most(path, limit_bytes)
        except FileNotFoundError as error:
            if not is_listed(path):
                raise
            if bound.has_passed:
                reason = "it is listed, and yet not found"
                raise OSError(errno.ESTALE, reason, str(path)) from error
        time.sleep(_NAP_S)


def is_there(path: Path) -> bool:
    """Return whether there is such a name; raises ``OSError`` if that cannot be told just now."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        return False
    return True
