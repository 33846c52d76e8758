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
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.run.files import (
    BoundedCalls,
    close,
    move,
    open_to_read,
    open_to_write,
    refusal,
)
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.signals import start_thread
from holdfast.runtime.system.witnessed_time import Stillness

LARGEST_LEASE_BYTES = 1 << 14
RENEWED_EVERY_S = 10.0
_TOKEN_BYTES = 8
_HEAD = b'{"renewed": "'
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


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """What a lease says of the job that owns the directory, or owned it last; all of it may lack.

    The fields stand in the file in this order.
    """

    renewed: str | None = None
    """Another value each time, of an owner that renews its lease: it lies where no locks are."""
    host: str | None = None
    pid: int | None = None
    """The head, or the process that is about to start one."""
    token: str = ""
    directory: Path | None = None
    takes_orders: bool = True
    """Whether it saves and stops when it is asked to; `holdfast repair` does not."""
    agent: Path | None = None
    """The head's socket."""
    client: int | None = None
    """The process that shows the job."""
    ended: bool = False
    """Whether it has said that its job is over."""

    def encode(self) -> bytes:
        """Return the content of the lease file."""
        unsaid = to_plain(LeaseOwner())
        said = {name: value for name, value in to_plain(self).items() if value != unsaid[name]}
        return json.dumps(said).encode() + b"\n"

    @staticmethod
    def decode(content: bytes) -> LeaseOwner:
        """Return what a lease says: nothing if it is empty, torn, or no lease."""
        with contextlib.suppress(ValueError, RecursionError):
            return from_plain(LeaseOwner, json.loads(content), allows_more=True)
        return LeaseOwner()


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
            self._token = self._token or self._owner().token
        return self._token

    @property
    def is_renewed(self) -> bool:
        """Whether it lies where no locks are, so that it is the owner's only while renewed."""
        with contextlib.suppress(OSError):
            return self._owner().renewed is not None
        return False

    def begin(self, token: str, *, takes_orders: bool, is_renewed: bool) -> None:
        """Write down that this process owns the directory, for a job with this token.

        Nothing stays of the last owner.  Raises ``OSError`` if the file cannot be written.
        """
        owner = LeaseOwner(
            renewed=_new_secret() if is_renewed else None,
            host=os.uname().nodename,
            pid=os.getpid(),
            token=token,
            directory=Path(f"/proc/self/fd/{self._descriptor}").readlink().parent,
            takes_orders=takes_orders,
        )
        self._write(owner)
        self._token = token

    def name_head(self, pid: int, socket: Path, client: int | None = None) -> None:
        """Write down which process decides for the job, where it listens, and which shows it.

        All else stays.  Raises ``OSError`` if the file cannot be written.
        """
        owner = self._owner()
        self._write(replace(owner, pid=pid, agent=socket, client=client or owner.client))

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
        self._token = self._token or LeaseOwner.decode(content).token
        if not content.startswith(_HEAD):
            return False
        os.pwrite(descriptor, _new_secret().encode(), len(_HEAD))
        os.fsync(descriptor)
        return True

    def _say_ended(self) -> None:
        with contextlib.suppress(OSError):  # the next job watches it
            owner = self._owner()
            if self._token and owner.token == self._token:
                is_none = self._is_refused and self._is_first
                self._write(replace(owner, token="" if is_none else owner.token, ended=True))

    def _owner(self) -> LeaseOwner:
        return LeaseOwner.decode(_read(self._descriptor))

    def _write(self, owner: LeaseOwner) -> None:
        # Written first and cut afterwards: on a full disk the old content stays.
        content = owner.encode()
        os.pwrite(self._descriptor, content.ljust(os.fstat(self._descriptor).st_size), 0)
        os.ftruncate(self._descriptor, len(content))
        if owner.renewed is not None:  # no lock makes a client of a file server send it
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
        raise self._busy(LeaseOwner())

    def _lock(self, descriptor: int, kind: int) -> bool:
        """Lock the file; return False if the file system has no locks."""
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # the latter on NFS (fcntl(2))
            owner = LeaseOwner()
            with contextlib.suppress(OSError):
                owner = LeaseOwner.decode(_read(descriptor))
            is_elsewhere = owner.host not in (None, os.uname().nodename)
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
        # It may say nothing: a disk was full, or an owner has died while it wrote.
        owner = LeaseOwner.decode(seen)
        if owner.ended or (has_locks and owner.renewed is None):
            return seen
        if owner != LeaseOwner() and owner.renewed is None:
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
            raise self._busy(LeaseOwner()) from error
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
            if (owner := self._owner()) != LeaseOwner():
                break
            time.sleep(_PUT_BACK_LOOK_S)
        if owner.token != token:
            raise self._busy(owner)

    def _owner(self) -> LeaseOwner:
        """Return the owner as the name shows it now; nothing if nobody can tell."""
        with contextlib.suppress(OSError), open_to_read(self.path) as file:
            return LeaseOwner.decode(_read(file.fileno()))
        return LeaseOwner()

    def _busy(self, owner: LeaseOwner, more: str = "") -> RunDirectoryBusy:
        named = "its owner is just starting"
        if owner.host is not None and owner.pid is not None:
            named = f"pid {owner.pid} on host {owner.host}"
        text = (
            f"run directory {self.path.parent} belongs to another job ({named}); "
            "wait for it to end, stop it, or choose another --run-dir"
        )
        return RunDirectoryBusy(f"{text}; {more}" if more else text)


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, LARGEST_LEASE_BYTES, 0)


def _new_secret() -> str:
    """Return the token of a job that takes a directory, or another value of a lease."""
    return secrets.token_hex(_TOKEN_BYTES)


def _name(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return f"{error.strerror or error} ({name})"
