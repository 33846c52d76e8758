"""The lease of a run directory: a locked file that names its owner.

Its token is a secret that each owner writes when it takes the lease.  A job that finds
another token than its own has been replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.runtime.run.own_file import close

LARGEST_LEASE_BYTES = 1 << 14
_TOKEN_BYTES = 8


class Lease:
    """Ownership of a run directory for as long as this descriptor, or a copy, is open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._token = ""

    def fileno(self) -> int:
        """Return the descriptor that heirs need (``subprocess`` takes it as ``pass_fds``)."""
        return self._descriptor

    @property
    def token(self) -> str:
        """The secret of its owner, which tells a later owner of the same directory.

        It is "" if the file cannot be read.
        """
        with contextlib.suppress(OSError):
            self._token = self._token or token_in(self._owner())
        return self._token

    def name_owner(self, *, takes_orders: bool = True) -> None:
        """Write down that this process owns the directory; agent and token stay.

        Raises ``OSError`` if the file cannot be written.
        """
        before = self._owner()
        token = token_in(before) or secrets.token_hex(_TOKEN_BYTES)
        owner = {**before, "host": os.uname().nodename, "pid": os.getpid(), "token": token}
        owner.pop("takes_orders", None)
        if not takes_orders:
            owner["takes_orders"] = False
        self._write(owner)

    def keep_token(self, token: str) -> None:
        """Write down the token of the lease that this one replaces, for the same owner.

        Raises ``OSError`` if the file cannot be written.
        """
        self._write({**self._owner(), "token": token})
        self._token = token

    def name_agent(self, socket: Path) -> None:
        """Write down where the job's agent listens, for a supervisor that takes the job over."""
        self._write({**self._owner(), "agent": str(socket)})

    def _owner(self) -> dict[str, object]:
        try:
            return owner_in(os.pread(self._descriptor, LARGEST_LEASE_BYTES, 0))
        except ValueError:
            return {}

    def _write(self, owner: dict[str, object]) -> None:
        # Written first and cut afterwards: on a full disk the old content stays.
        content = json.dumps(owner).encode() + b"\n"
        os.pwrite(self._descriptor, content.ljust(os.fstat(self._descriptor).st_size), 0)
        os.ftruncate(self._descriptor, len(content))

    def release(self) -> None:
        """Close this process's copy; the lease ends when no other process has one."""
        close(self._descriptor)


def owner_in(content: bytes) -> dict[str, Any]:
    """Return what a lease says of its owner; raises ``ValueError`` if it says nothing."""
    owner = json.loads(content)
    if not isinstance(owner, dict):
        raise ValueError(f"a lease holds a {type(owner).__name__}, not an object")
    return owner


def token_in(owner: Mapping[str, object]) -> str:
    """Return the token in what a lease says of its owner, "" without one."""
    token = owner.get("token")
    return token if isinstance(token, str) else ""
