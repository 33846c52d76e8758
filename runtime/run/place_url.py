"""The URL of a place of copies, and paths there; `place` talks to it."""

from __future__ import annotations

import re
from pathlib import PosixPath
from urllib.parse import urlsplit

_SCHEMES = ("s3", "gs", "file")
_URL = re.compile(r"(\w+):/+(.*)")


def is_url(value: object) -> bool:
    """Return whether a word names a place, and not a path."""
    return isinstance(value, PlacePath) or "://" in str(value)


def read_url(value: object) -> str:
    """Return the URL of a place; raises ``ValueError``, whose text has nothing of a bad one."""
    parts = urlsplit(str(value))
    if parts.scheme not in _SCHEMES or not (parts.netloc or parts.path.strip("/")):
        raise ValueError("give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or file:///FOLDER")
    if "@" in str(value) or parts.query or parts.fragment:
        raise ValueError(
            "leave keys and passwords out, which lines and files would show; give them as the "
            "tools of the store take them, as by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.scheme == "file" and parts.netloc:
        raise ValueError(f"give file:///FOLDER, an absolute path; {parts.netloc!r} is a host")
    return str(value).rstrip("/")


class PlacePath(PosixPath):
    """A path in a place, which is shown as the URL that it is; no call of the system takes it."""

    def __str__(self) -> str:
        match = _URL.fullmatch(super().__str__())
        if match is None:
            return super().__str__()
        return f"{match[1]}://{'/' if match[1] == 'file' else ''}{match[2]}"
