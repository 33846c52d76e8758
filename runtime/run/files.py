"""The files of a run directory: opened so that nobody can substitute them, on disks that may fail.

Other users may be allowed to write into the directory of a run.  They could replace the
lease by a link to a file of the user's, and holdfast would write into that file.  So each
file is opened through its directory, and no link is followed.  The opened file is checked
before it is used.

A file must be a regular one.  It must belong to this process's user, to root, or to the
owner of the directory.  The last is as safe as the directory itself, whose owner may
exchange all files in it.  Three cases need it: root in a user's run, a user in a
colleague's run, and a file system that gives all files one owner.  In the directory of a
group, which its members may write, it may belong to any of them.  They have files of that
group, and others who could place one there must not be allowed to write.

A file that is *written* must have one name only: a hard link would change the file that
it was made of.  Reading allows more names, since backups are made of hard links
(``cp -al``, ``rsync --link-dest``).

A call fails for good, or only just now (`refusal`).  "Just now" says nothing against the run: the
same request may succeed when the file system answers again.  A job that may not begin then ends
with the exit code of one that can be run again.

A server that is gone lets a call hang for ever, and no signal ends it.  So a thread makes the
calls of a job in order (`BoundedCalls`), and the caller waits for each of them, but not for long.
From the first call that takes too long, nobody waits for any.  That ends when the thread has caught
up and a number of calls in a row were quick: a disk may be slow for days.  Calls queue meanwhile,
up to a limit.  As long as the file system answers, a call is over when ``run`` returns.

A job that has not begun has nothing to lose.  So a thread waits beside its first calls
(`answering`): it says that the directory does not answer, and later ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.checkpoint.errors import FULL, TRANSIENT
from holdfast.runtime.errors import ExitCode, RunUnreadable, UsageError
from holdfast.runtime.system.signals import start_thread
from holdfast.runtime.system.witnessed_time import Bound, has_ended

_ROOT = 0
_MODE = 0o666  # the umask counts
# Without O_NONBLOCK, opening a pipe would wait for a process at its other end.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_REMOVE = "find out who made it and remove it, or choose another run directory"

_WITHOUT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""What one answers that cannot sync a directory; the first save tells of it."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}

WAITS_S = 1.0
"""How long a caller waits for a call, where it says nothing else."""

_MOST_QUEUED = 10_000
_QUICK_IN_A_ROW = 20

_QUICK = 0.1
"""A call is quick that takes this part of the time that a caller would wait."""

TELLS_AFTER_S = 10.0
GIVES_UP_AFTER_S = 300.0


class ForeignFile(OSError):
    """A file in a run directory that holdfast has not made, and neither reads nor writes.

    ``strerror`` describes the file; the text adds its path and the remedy.
    """

    def __init__(self, path: Path, found: str, advice: str = _REMOVE) -> None:
        super().__init__(errno.EPERM, f"it {found}", str(path))
        self._text = f"{path} {found}; {advice}"

    def __str__(self) -> str:
        return self._text


def open_to_write(path: Path, flags: int = 0, *, may_make: bool = True) -> int:
    """Open a file for reading and writing, create it if needed; return its descriptor.

    Raises:
        ForeignFile: it is not this run's own.
        OSError: it cannot be opened.
    """
    flags |= os.O_RDWR | (os.O_CREAT if may_make else 0)
    return _open(path, flags, is_written=True)


@contextlib.contextmanager
def open_to_read(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, and close it at the end.

    Raises:
        ForeignFile: it is not this run's own.
        OSError: it cannot be opened.
    """
    with os.fdopen(_open(path, os.O_RDONLY, is_written=False), "rb") as file:
        yield file


def read_at_most(path: Path, limit_bytes: int) -> bytes:
    """Return the contents of a file.

    Raises:
        ForeignFile: it is not this run's own.
        OSError: it cannot be read.
        ValueError: it has more than ``limit_bytes`` bytes.
    """
    with open_to_read(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"it has more than {limit_bytes} bytes")
    return content


def _open(path: Path, flags: int, *, is_written: bool) -> int:
    # The directory itself may be a link: its path is the user's.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = _open_name(folder, path, flags)
        try:
            found = os.fstat(descriptor)
            _refuse_foreign(path, found, os.fstat(folder))
            if is_written:
                _refuse_shared(path, found)
        except BaseException:
            close(descriptor)
            raise
    finally:
        close(folder)
    return descriptor


def _open_name(folder: int, path: Path, flags: int) -> int:
    try:
        return os.open(path.name, flags | _SAFELY, _MODE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ForeignFile(path, "is a symbolic link") from error
        raise


def _refuse_foreign(path: Path, found: os.stat_result, folder: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise ForeignFile(path, f"is {kind}, not a regular file")
    owners = {os.geteuid(), _ROOT, folder.st_uid}
    writers = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_of_group = writers == stat.S_IWGRP and found.st_gid == folder.st_gid
    if found.st_uid not in owners and not is_of_group:
        known = " or ".join(map(str, sorted(owners)))
        raise ForeignFile(path, f"belongs to user {found.st_uid}, not to {known}")


def _refuse_shared(path: Path, found: os.stat_result) -> None:
    if found.st_nlink > 1:
        raise ForeignFile(
            path,
            f"has {found.st_nlink} names (hard links), so writing would change another file",
            "remove it; or, if it is this run's, make it a file of its own: "
            f"cp -p {path} {path}.new && mv {path}.new {path}",
        )


def close(descriptor: int) -> None:
    """Close a file and ignore an error: it is of delayed writes, and too late to act on."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def write_whole(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write a file that is there whole or not at all, in the place of an older one.

    A durable one is there after a power cut, too, as far as the file system syncs directories.
    It is a new file that takes the name at the end, so no link is followed there.  What a killed
    process has left of it, the next write takes.  Several processes may write at once.
    """
    draft, descriptor = _draft_of(path)
    with os.fdopen(descriptor, "wb") as file:  # its lock ends when it is closed
        try:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
            move(draft, path)
            if is_durable:
                sync_names(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise


def _draft_of(path: Path) -> tuple[Path, int]:
    """Return an empty file beside ``path`` that nobody else writes, and its descriptor.

    The name is always the same, unless another process has it, or there are no locks.
    """
    draft = path.with_name(f".{path.name}.draft")
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | _SAFELY, _MODE)
        opened.callback(close, descriptor)
        found = os.fstat(descriptor)
        _refuse_foreign(draft, found, draft.parent.stat())
        _refuse_shared(draft, found)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # there are no locks, so nobody writes it
                draft.unlink()
            raise
        if os.path.samestat(found, draft.lstat()):  # else it was placed just now
            os.ftruncate(descriptor, 0)
            opened.pop_all()
            return draft, descriptor
    draft = draft.with_name(f"{draft.name}-{secrets.token_hex(8)}")
    return draft, os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)


def move(source: Path, target: Path) -> None:
    """Rename a file or directory; a file takes the place of another one.

    A client of a server asks again when an answer is lost, and is told that there is no such
    source, or such a name already.  So no failure counts if the target is the source.
    """
    before = source.lstat()
    try:
        source.rename(target)
    except OSError:
        with contextlib.suppress(OSError):
            if os.path.samestat(target.lstat(), before):
                return
        raise


def sync_names(path: Path) -> None:
    """Make the names in a directory durable, where the file system can."""
    try:
        sync(path)
    except OSError as error:
        if error.errno not in _WITHOUT_SYNC:
            raise


def sync(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_there(path: Path) -> bool:
    """Return whether there is such a name; raises ``OSError`` if that cannot be told just now."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno in TRANSIENT:
            raise
        return False
    return True


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


class BoundedCalls:
    """Runs calls that raise nothing; starts its daemon thread with the first of them."""

    def __init__(
        self, name: str, waits_s: float | None = None, most_queued: int = _MOST_QUEUED
    ) -> None:
        """Let a caller wait ``waits_s`` for a call, ``WAITS_S`` if that is None."""
        self._name = name
        self._waits_s = WAITS_S if waits_s is None else waits_s
        self._most_queued = most_queued
        self._queue: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._taken = self._ended = self._quick_in_a_row = 0
        self._is_behind = self._is_closing = False
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], None]) -> bool:
        """Run ``call`` and wait for its end, but not for long; False if it will never run."""
        with self._changed:
            if len(self._queue) >= self._most_queued:
                return False
            try:
                self._start()
            except OSError:
                return False
            self._queue.append(call)
            self._taken += 1
            number = self._taken
            self._changed.notify_all()
            if not self._is_behind:
                self._is_behind = not Bound(self._waits_s).wait(
                    lambda left_s: self._changed.wait_for(lambda: self._ended >= number, left_s)
                )
            return True

    @property
    def is_behind(self) -> bool:
        """Whether a call takes too long, so that nobody waits for the calls after it."""
        return self._is_behind

    def close(self, within_s: float) -> None:
        """Let the thread end after the calls that wait, and wait for it ``within_s`` at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            has_ended(self._thread, Bound(within_s))

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            start_thread(thread)
            self._thread = thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._is_closing)
                if not self._queue:
                    return
                call = self._queue.popleft()
            began = time.monotonic()
            call()
            is_quick = time.monotonic() - began < _QUICK * self._waits_s
            with self._changed:
                self._ended += 1
                self._quick_in_a_row = self._quick_in_a_row + 1 if is_quick else 0
                if not self._queue and self._quick_in_a_row >= _QUICK_IN_A_ROW:
                    self._is_behind = False
                self._changed.notify_all()


@contextlib.contextmanager
def answering(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Run the body, which asks the run directory ``path``; end the process if it never answers.

    The body may hang in the kernel, so the end is ``os._exit``, with the exit code of a job
    that can be started again.
    """
    has_answered = threading.Event()

    def wait() -> None:
        if Bound(TELLS_AFTER_S).wait(has_answered.wait):
            return
        tell(
            f"the run directory {path} has not answered for {TELLS_AFTER_S:.0f} s; waiting for its "
            f"disk, {GIVES_UP_AFTER_S:.0f} s at most"
        )
        if Bound(GIVES_UP_AFTER_S - TELLS_AFTER_S).wait(has_answered.wait):
            return
        tell(
            f"the run directory {path} has not answered for {GIVES_UP_AFTER_S:.0f} s: its disk "
            "hangs; nothing was started, and nothing is known to be damaged; run again when it "
            "answers"
        )
        os._exit(ExitCode.STOPPED_EARLY)

    with contextlib.suppress(OSError):  # then nobody tells; the body is what counts
        start_thread(threading.Thread(target=wait, name="holdfast-answering", daemon=True))
    try:
        yield
    finally:
        has_answered.set()
