"""The lease of a run directory: a file that names its owner, locked where there are locks.

Its token is a secret that each owner writes when it takes the lease.  A job that finds
another token than its own has been replaced.

Where the file system has no locks, the record begins with the word ``renewed``.  Each process that
holds the lease writes another value there again and again.  It has a fixed place and width, so
processes that renew and a supervisor that writes names do not undo each other's work.  A job that
wants the directory watches for a change (`lease_file`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.runtime.run.bounded_calls import BoundedCalls
from holdfast.runtime.run.own_file import close
from holdfast.runtime.system.signals import blocked

LARGEST_LEASE_BYTES = 1 << 14

RENEWED_EVERY_S = 10.0

_TOKEN_BYTES = 8
_RENEWED = "renewed"
_DIRECTORY = "directory"
_HEAD = f'{{"{_RENEWED}": "'.encode()
_GONE = -1


class Lease:
    """Ownership of a run directory for as long as this descriptor, or a copy, is open."""

    def __init__(self, descriptor: int, *, is_first: bool = False) -> None:
        """Hold an open lease file; ``is_first`` is whether it had no owner before."""
        self._descriptor = descriptor
        self._is_first = is_first
        self._is_refused = False
        self._token = ""
        self._is_over = threading.Event()

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

    @property
    def is_renewed(self) -> bool:
        """Whether it lies where no locks are, so that it is the owner's only while renewed."""
        with contextlib.suppress(OSError):
            return must_be_renewed(self._owner())
        return False

    def begin(self, token: str, *, takes_orders: bool, is_renewed: bool) -> None:
        """Write down that this process owns the directory, for a job with this token.

        Nothing stays of the last owner.  Raises ``OSError`` if the file cannot be written.
        """
        owner: dict[str, object] = {_RENEWED: new_secret()} if is_renewed else {}
        owner |= {"host": os.uname().nodename, "pid": os.getpid(), "token": token}
        owner |= {_DIRECTORY: str(Path(f"/proc/self/fd/{self._descriptor}").readlink().parent)}
        self._write(owner if takes_orders else {**owner, "takes_orders": False})
        self._token = token

    def name_owner(self) -> None:
        """Write down that this process owns the directory, and takes orders; all else stays.

        Raises ``OSError`` if the file cannot be written.
        """
        owner = {**self._owner(), "host": os.uname().nodename, "pid": os.getpid()}
        owner.pop("takes_orders", None)
        self._write(owner)

    def name_agent(self, socket: Path) -> None:
        """Write down where the job's agent listens, for a supervisor that takes the job over."""
        self._write({**self._owner(), "agent": str(socket)})

    def keep(self) -> None:
        """Renew the lease from now on, if it must be; a disk that hangs holds up a thread only.

        Raises ``OSError`` without a descriptor or a thread to spare.
        """
        # Its own: a call that hangs must find no other file at a number that was used again.
        descriptor = os.dup(self._descriptor)
        thread = threading.Thread(
            target=self._keep, args=(descriptor,), name="holdfast-lease", daemon=True
        )
        try:
            with blocked():  # signals are for the main thread
                thread.start()
        except RuntimeError as error:
            close(descriptor)
            raise OSError(errno.EAGAIN, str(error)) from error

    def end(self, *, is_refused: bool = False) -> None:
        """Write down that the job has ended, so that the next one need not watch; never waits long.

        Nothing is written into the lease of another job that has taken it since.  A job that was
        refused has changed nothing, so its token must end nobody's saves.  It leaves none in a
        lease that nobody had before.
        """
        self._is_refused = is_refused
        self._is_over.set()
        calls = BoundedCalls("holdfast-lease-end")
        calls.run(self._say_ended)
        calls.close(0.0)

    def release(self) -> None:
        """Close this process's copy; the lease ends when no other process has one."""
        self._is_over.set()
        descriptor, self._descriptor = self._descriptor, _GONE
        if descriptor != _GONE:
            close(descriptor)

    def _keep(self, descriptor: int) -> None:
        is_ours = True
        while is_ours:
            with contextlib.suppress(OSError):  # a server that is away; the next one may reach it
                is_ours = self._renew(descriptor)
            is_ours = is_ours and not self._is_over.wait(RENEWED_EVERY_S)
        close(descriptor)

    def _renew(self, descriptor: int) -> bool:
        """Renew the lease; return False if it needs none, or is that of a job with a lock by now.

        Without locks another job has made another file, and this one has no name any more.
        """
        content = os.pread(descriptor, LARGEST_LEASE_BYTES, 0)
        self._token = self._token or _token_in_bytes(content)
        if not content.startswith(_HEAD):
            return False
        os.pwrite(descriptor, new_secret().encode(), len(_HEAD))
        os.fsync(descriptor)
        return True

    def _say_ended(self) -> None:
        with contextlib.suppress(OSError):  # the next job watches it
            owner = self._owner()
            if self._token and token_in(owner) == self._token:
                if self._is_refused and self._is_first:
                    del owner["token"]
                self._write({**owner, "ended": True})

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
        if must_be_renewed(owner):  # no lock makes a client of a file server send it
            os.fsync(self._descriptor)


def owner_in(content: bytes) -> dict[str, Any]:
    """Return what a lease says of its owner; raises ``ValueError`` if it says nothing."""
    try:
        owner = json.loads(content)
    except RecursionError as error:
        raise ValueError("a lease holds a deep tree, not an object") from error
    if not isinstance(owner, dict):
        raise ValueError(f"a lease holds a {type(owner).__name__}, not an object")
    return owner


def token_in(owner: Mapping[str, object]) -> str:
    """Return the token in what a lease says of its owner, "" without one."""
    token = owner.get("token")
    return token if isinstance(token, str) else ""


def new_secret() -> str:
    """Return the token of a job that takes a directory, or another value of a lease."""
    return secrets.token_hex(_TOKEN_BYTES)


def must_be_renewed(owner: Mapping[str, object]) -> bool:
    """Return whether an owner renews its lease, because it lies where no locks are."""
    return _RENEWED in owner


def has_ended(owner: Mapping[str, object]) -> bool:
    """Return whether the owner of a lease has said that its job is over."""
    return owner.get("ended") is True


def directory_in(owner: Mapping[str, object]) -> Path | None:
    """Return the directory in which a lease was made, None if it does not say."""
    directory = owner.get(_DIRECTORY)
    return Path(directory) if isinstance(directory, str) else None


def _token_in_bytes(content: bytes) -> str:
    try:
        return token_in(owner_in(content))
    except ValueError:
        return ""
