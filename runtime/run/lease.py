"""The lease of a run directory: a file that names its owner, and how a job takes it.

With locks: ``flock``.  It belongs to the open file description, so each process that has inherited
the descriptor holds it.  The kernel frees it when the last of them is gone.

Without (Lustre mounted without ``flock``, NFS without a lock manager): the process that
*makes* the file has the directory, and renews it.  Another job takes it from an owner that
has said its end, or that has not renewed it for a minute by the taker's own clock.  It moves
the file away, looks at what it has moved, and makes a new one.  Only one process can move a
file, and only one can make it.  So of many takers one gets it, and a taker that dies in
between leaves a free directory behind.

Where there are no locks the content begins with the word ``renewed``.  Each process that
holds the lease writes another value there again and again.  It has a fixed place and width, so
processes that renew and one that writes names do not undo each other's work.

The token in it is a secret that each owner writes when it takes the lease.  A job that finds
another token than its own has been replaced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.run.files import (
    BoundedCalls,
    close,
    move,
    open_to_read,
    open_to_write,
    refusal,
)
from holdfast.runtime.system.signals import start_thread
from holdfast.runtime.system.witnessed_time import Stillness

LARGEST_LEASE_BYTES = 1 << 14
RENEWED_EVERY_S = 10.0
_TOKEN_BYTES = 8
_RENEWED = "renewed"
_HEAD = f'{{"{_RENEWED}": "'.encode()
_GONE = -1

LASTS_S = 60.0
"""A lease that was not renewed for so long is a dead owner's: six renewals were missed, and no
client of a file server keeps what it knows of a file for longer (``acregmax`` of nfs(5))."""

_WAIT_S = 1.5 * LASTS_S
"""What a user is told to wait: the looks at a slow file server take their time, too."""

_TRIES = 100
_ASIDE = ".lease."
_PUT_BACK_LOOK_S = 0.01
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
_AWAY = (
    "if that host has died, the file server keeps its lock until it notices: for minutes (NFSv4, "
    "Lustre), which --wait-lease 10min waits for, or until the host is back (NFSv3)"
)
_WATCHED = (
    "its file system has no locks, so a dead owner shows only by {0:.0f} s without a sign of life, "
    "of which {1:.0f} s are left: --wait-lease {2:.0f} watches for that; if you know that it is "
    "dead, remove {3}"
)
_UNSEEN = (
    "its lease was taken with a lock, and this host has no locks on this file system, so it "
    "cannot tell whether that job lives; if you know that it is dead, remove {}"
)
_UNLOCKABLE = (
    "lease {} cannot be locked: {}; mount its file system with locks that all hosts see (Lustre: "
    "flock, NFS: a lock manager), or choose another --run-dir"
)


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
            return _must_be_renewed(self._owner())
        return False

    def begin(self, token: str, *, takes_orders: bool, is_renewed: bool) -> None:
        """Write down that this process owns the directory, for a job with this token.

        Nothing stays of the last owner.  Raises ``OSError`` if the file cannot be written.
        """
        owner: dict[str, object] = {_RENEWED: _new_secret()} if is_renewed else {}
        owner |= {"host": os.uname().nodename, "pid": os.getpid(), "token": token}
        owner |= {"directory": str(Path(f"/proc/self/fd/{self._descriptor}").readlink().parent)}
        self._write(owner if takes_orders else {**owner, "takes_orders": False})
        self._token = token

    def name_head(self, pid: int, socket: Path, client: int | None = None) -> None:
        """Write down which process decides for the job, where it listens, and which shows it.

        All else stays.  Raises ``OSError`` if the file cannot be written.
        """
        named: dict[str, object] = {"pid": pid, "agent": str(socket)}
        if client is not None:
            named["client"] = client
        self._write({**self._owner(), **named})

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
            start_thread(thread)
        except OSError:
            close(descriptor)
            raise

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
        content = _read(descriptor)
        self._token = self._token or token_in(owner_in(content))
        if not content.startswith(_HEAD):
            return False
        os.pwrite(descriptor, _new_secret().encode(), len(_HEAD))
        os.fsync(descriptor)
        return True

    def _say_ended(self) -> None:
        with contextlib.suppress(OSError):  # the next job watches it
            owner = self._owner()
            if self._token and token_in(owner) == self._token:
                if self._is_refused and self._is_first:
                    del owner["token"]
                self._write({**owner, "ended": True})

    def _owner(self) -> dict[str, Any]:
        return owner_in(_read(self._descriptor))

    def _write(self, owner: dict[str, object]) -> None:
        # Written first and cut afterwards: on a full disk the old content stays.
        content = json.dumps(owner).encode() + b"\n"
        os.pwrite(self._descriptor, content.ljust(os.fstat(self._descriptor).st_size), 0)
        os.ftruncate(self._descriptor, len(content))
        if _must_be_renewed(owner):  # no lock makes a client of a file server send it
            os.fsync(self._descriptor)


@dataclass(frozen=True, slots=True)
class LeaseFile:
    """The lease at ``path``; every call may raise ``OSError``, and ``UsageError`` for its lock.

    All attempts of one job have one ``watch``.
    """

    path: Path
    watch: Stillness

    def take(self, *, takes_orders: bool) -> Lease:
        """Take the lease for a job; never waits.

        Raises ``RunDirectoryBusy`` if another job has it, or may have it.
        """
        descriptor, is_new = self._open()
        try:
            has_locks = self._lock(descriptor, fcntl.LOCK_EX)
            if not is_new:
                seen = self._refuse_living(descriptor, has_locks=has_locks)
                if not has_locks:
                    descriptor = self._replace(seen, descriptor)
            lease, token = Lease(descriptor, is_first=is_new), _new_secret()
            lease.begin(token, takes_orders=takes_orders, is_renewed=not has_locks)
            if not has_locks:
                self._read_back(token)
                lease.keep()
            return lease
        except BaseException:
            close(descriptor)
            raise

    def _open(self) -> tuple[int, bool]:
        """Return a descriptor of the file, and whether this call has made it."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileExistsError):
                return open_to_write(self.path, os.O_EXCL), True
            with contextlib.suppress(FileNotFoundError):  # a taker has moved it away in between
                return self._open_existing(), False
        raise self._busy({})

    def _lock(self, descriptor: int, kind: int) -> bool:
        """Lock the file; return False if the file system has no locks."""
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # the latter on NFS (fcntl(2))
            owner: dict[str, Any] = {}
            with contextlib.suppress(OSError):
                owner = owner_in(_read(descriptor))
            is_elsewhere = owner.get("host") not in (None, os.uname().nodename)
            raise self._busy(owner, _AWAY if is_elsewhere else "") from error
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise refusal(self.path, error, _UNLOCKABLE.format(self.path, _name(error))) from error
        return True

    def _refuse_living(self, descriptor: int, *, has_locks: bool) -> bytes:
        """Return the lease as it is; raise ``RunDirectoryBusy`` if its owner may live.

        A lock tells nothing of an owner on a host that has none.
        """
        # Just opened: that makes the client of a network file system ask its server.
        seen, still_s = self.watch.poll(lambda: _read(descriptor))
        owner = owner_in(seen)  # nothing: a disk was full, or an owner has died while it wrote
        if has_ended(owner) or (has_locks and not _must_be_renewed(owner)):
            return seen
        if owner and not _must_be_renewed(owner):
            raise self._busy(owner, _UNSEEN.format(self.path))
        if still_s < LASTS_S:
            raise self._busy(owner, _WATCHED.format(LASTS_S, LASTS_S - still_s, _WAIT_S, self.path))
        return seen

    def _replace(self, seen: bytes, descriptor: int) -> int:
        """Make a new lease in the place of one that is free; return its descriptor."""
        self._move_away(seen, descriptor)
        try:
            made = open_to_write(self.path, os.O_EXCL)
        except FileExistsError as error:
            raise self._busy(self._owner()) from error
        close(descriptor)
        return made

    def _move_away(self, seen: bytes, descriptor: int) -> None:
        """Remove the lease that was seen through ``descriptor``, and only that."""
        aside = self.path.with_name(f"{_ASIDE}{secrets.token_hex(8)}")
        try:
            move(self.path, aside)
        except FileNotFoundError as error:  # another job has just done so
            raise self._busy({}) from error
        is_it = False
        try:
            with open_to_read(aside) as file:
                is_same = os.path.samestat(os.fstat(file.fileno()), os.fstat(descriptor))
                is_it = is_same and _read(file.fileno()) == seen
        finally:
            if not is_it:  # its owner has renewed it just now, or another job has taken it
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self.path)
            with contextlib.suppress(OSError):
                aside.unlink()
        if not is_it:
            raise self._busy(self._owner())

    def _open_existing(self) -> int:
        """Return a descriptor of the file that is there.

        A taker that was killed while it put the file back has left it a second name.
        """
        for aside in self.path.parent.glob(f"{_ASIDE}*"):
            with contextlib.suppress(OSError):
                if os.path.samestat(aside.lstat(), self.path.lstat()):
                    aside.unlink()
        return open_to_write(self.path, may_make=False)

    def _read_back(self, token: str) -> None:
        """Return if the lease has this token; raise ``RunDirectoryBusy`` if another job has it.

        Another taker may have moved it by mistake, and puts it back at once.
        """
        for _ in range(_TRIES):
            if owner := self._owner():
                break
            time.sleep(_PUT_BACK_LOOK_S)
        if token_in(owner) != token:
            raise self._busy(owner)

    def _owner(self) -> dict[str, Any]:
        """Return the owner as the name shows it now; nothing if nobody can tell."""
        with contextlib.suppress(OSError), open_to_read(self.path) as file:
            return owner_in(_read(file.fileno()))
        return {}

    def _busy(self, owner: Mapping[str, Any], more: str = "") -> RunDirectoryBusy:
        named = "its owner is just starting"
        if {"host", "pid"} <= owner.keys():
            named = f"pid {owner['pid']} on host {owner['host']}"
        text = (
            f"run directory {self.path.parent} belongs to another job ({named}); "
            "wait for it to end, stop it, or choose another --run-dir"
        )
        return RunDirectoryBusy(f"{text}; {more}" if more else text)


def owner_in(content: bytes) -> dict[str, Any]:
    """Return what a lease says of its owner; nothing if it is empty or torn."""
    with contextlib.suppress(ValueError, RecursionError):
        owner = json.loads(content)
        return owner if isinstance(owner, dict) else {}
    return {}


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, LARGEST_LEASE_BYTES, 0)


def token_in(owner: Mapping[str, object]) -> str:
    """Return the token in what a lease says of its owner, "" without one."""
    token = owner.get("token")
    return token if isinstance(token, str) else ""


def _must_be_renewed(owner: Mapping[str, object]) -> bool:
    """Return whether an owner renews its lease, because it lies where no locks are."""
    return _RENEWED in owner


def has_ended(owner: Mapping[str, object]) -> bool:
    """Return whether the owner of a lease has said that its job is over."""
    return owner.get("ended") is True


def _new_secret() -> str:
    """Return the token of a job that takes a directory, or another value of a lease."""
    return secrets.token_hex(_TOKEN_BYTES)


def _name(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{error.strerror or error} ({name})"
