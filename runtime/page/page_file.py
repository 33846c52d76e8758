"""The file of a page: it appears whole, and what was there before stays until then.

The page belongs to the user, and a job neither reads nor lists it.  So it may be put into the
directory of a run that a job owns, without the lease.  It is a new file that takes the name at the
end: no link is followed there, and half a page is never seen.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import create_durably, refusal


def write_page(path: Path, text: str) -> None:
    """Write a page, in the place of an older one.

    Raises:
        UsageError: the file cannot be written, or its name is that of something else.
    """
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise UsageError(f"{path} is {kind}; give the page another name with --html FILE")
    draft = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        create_durably(draft, text.encode())
        os.replace(draft, path)
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "give the page another place with --html FILE"
        raise refusal(path, error, f"{path} cannot be written: {reason}; {advice}") from error
    finally:
        with contextlib.suppress(OSError):  # the page is there, or its error is on its way
            draft.unlink()
