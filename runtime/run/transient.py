"""A call on a file of a run that has failed: for good, or only just now.

"Just now" says nothing against the run: the same request may succeed when the file system answers
again.  A job that may not begin then ends with the exit code of one that can be run again.
"""

from __future__ import annotations

import errno
from pathlib import Path

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.runtime.errors import RunUnreadable, UsageError


def refusal(path: Path, error: OSError, otherwise: str) -> UsageError:
    """Return the error of a request that cannot go on without ``path``.

    ``otherwise`` is the sentence for a call that would fail again.
    """
    if error.errno not in TRANSIENT:
        return UsageError(otherwise)
    name = errno.errorcode[error.errno]
    return RunUnreadable(
        f"{path} does not answer just now: {error.strerror or error} ({name}); nothing is known "
        "to be damaged: run again when the file system answers"
    )


def is_there(path: Path) -> bool:
    """Return whether there is such a name; raises ``OSError`` if that cannot be told just now."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        return False
    return True
