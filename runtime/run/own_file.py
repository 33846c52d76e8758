"""The files of a run directory, opened so that no other user can substitute another file.

Other users may be allowed to write into the directory of a run.  They could replace the
lease by a link to a file of the user's, and holdfast would write into that file.  So each
file is opened through its directory, and no link is followed.  The opened file is checked
before it is used.

A file must be a regular one.  It must belong to this process's user, to root, or to the
owner of the directory.  The last is as safe as the directory itself, whose owner may
exchange all files in it.  Three cases need it: root in a user's run, a user in a
colleague's run, and a file system that gives all files one owner.

A file that is *written* must have one name only: a hard link would change the file that
it was made of.  Reading allows more names, since backups are made of hard links
(``cp -al``, ``rsync --link-dest``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.checkpoint.disk.system_calls import renameat2

_ROOT = 0
_MODE = 0o644
# Without O_NONBLOCK, opening a pipe would wait for a process at its other end.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_REMOVE = "find out who made it and remove it, or choose another run directory"
_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that has no hard links, such as FAT."""
_WITHOUT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""What one answers that cannot sync a directory; the first save tells of it."""
_HERE = -100  # AT_FDCWD of linux/fcntl.h
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class ForeignFile(OSError):
    """A file in a run directory that holdfast has not made, and neither reads nor writes.

    ``strerror`` describes the file; the text adds its path and the remedy.
    """

    def __init__(self, path: Path, found: str, advice: str = _REMOVE) -> None:
        super().__init__(errno.EPERM, f"it {found}", str(path))
        self._text = f"{path} {found}; {advice}"

    def __str__(self) -> str:
        return self._text


def open_to_write(path: Path, flags: int = 0) -> int:
    """Open a file for reading and writing, create it if needed; return its descriptor.

    Raises:
        ForeignFile: it is not this run's own.
        OSError: it cannot be opened.
    """
    return _open(path, os.O_RDWR | os.O_CREAT | flags, is_written=True)


def open_existing(path: Path) -> int:
    """Open a file that is there for reading and writing; return its descriptor.

    Raises:
        ForeignFile: it is not this run's own.
        OSError: it cannot be opened.
    """
    return _open(path, os.O_RDWR, is_written=True)


def close(descriptor: int) -> None:
    """Close a file and ignore an error: it is of delayed writes, and too late to act on."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def create_durably(path: Path, content: bytes) -> None:
    """Make a file that holds ``content``, and sync it; an existing name is an error."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def give_name(draft: Path, path: Path) -> None:
    """Give a file its name, and fail with ``FileExistsError`` if anything has it already.

    It is like O_EXCL, but the name appears only when the content is complete.  Without hard
    links it is a rename, and only one process at a time may call this: where there is no
    rename that spares what is there, only a listing tells.
    """
    with _unless_done(draft, path):
        _link_or_rename(draft, path)


def _link_or_rename(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        if not renameat2((_HERE, str(draft)), (_HERE, str(path))):
            if is_listed(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
            draft.rename(path)


def is_listed(path: Path) -> bool:
    """Return whether the directory of ``path`` lists that name.

    A client of a server may remember for seconds that there is no such name.  It does not
    remember listings.  Raises ``OSError`` if the directory cannot be listed.
    """
    return path.name in os.listdir(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file or directory."""
    with _unless_done(source, target):
        source.rename(target)


@contextlib.contextmanager
def _unless_done(source: Path, target: Path) -> Iterator[None]:
    """Ignore the failure of a call that has given ``source`` the name ``target``.

    A client of a server asks again when an answer is lost, and is told that there is such a
    name already, or no such source.
    """
    before = source.lstat()
    try:
        yield
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
            _refuse_foreign(path, found, os.fstat(folder).st_uid)
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


def _refuse_foreign(path: Path, found: os.stat_result, directory_owner: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise ForeignFile(path, f"is {kind}, not a regular file")
    owners = {os.geteuid(), _ROOT, directory_owner}
    if found.st_uid not in owners:
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
