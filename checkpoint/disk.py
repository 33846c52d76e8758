"""File-system calls that either complete or raise ``StorageFailed``.

This is the only place that knows how calls go wrong without failing.  Interrupted
calls are repeated.  Short reads and writes go on where they stopped.  Some file systems
lack some calls: the disk works without them, and records each as a downgrade.

One rule is never bent: a file whose write, fsync or close failed is removed.  It is
never synced again, because the kernel may have marked lost pages as clean (PostgreSQL's
fsync findings of 2018).
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias, TypeVar

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.filesystem import DirectoryName, FileSystem

_T = TypeVar("_T")
Watch: TypeAlias = Callable[[int], None]
"""Is told the bytes of a file before it is written, and minus as many once it is durable or given
up.  It is told 0 after each read and each removal.  Any thread may call it."""
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
_MOST_INTERRUPTIONS = 1000
_MOST_BUFFERS = 1024  # IOV_MAX of Linux
_BATCH_BYTES = 16 * 2**20
"""The disk is told to begin after each so many bytes.  Without that it idles until the fsync,
and a save takes the sum of copying and writing instead of the longer of the two.  Smaller
batches cost a few percent more."""
_WORTH_A_THREAD_BYTES = 4 * 2**20


class Disk:
    """A file system as the checkpoint store wants it; safe to use from several threads."""

    def __init__(self, filesystem: FileSystem | None = None) -> None:
        self._files: FileSystem = filesystem if filesystem is not None else FileSystem()
        self._downgrades: dict[str, None] = {}
        self._watch: Watch = lambda _: None

    def record_downgrade(self, reason: str) -> None:
        """Remember a guarantee that is not given, to be told once."""
        self._downgrades[reason] = None

    def new_downgrades(self, told: set[str]) -> tuple[str, ...]:
        """Return what is not given here and not in ``told``, a sentence each, and add it there."""
        new = tuple(downgrade for downgrade in self._downgrades if downgrade not in told)
        told.update(new)
        return new

    def watch(self, watch: Watch) -> None:
        """Let ``watch`` know what the disk is busy with, so that a disk that hangs can be told."""
        self._watch = watch

    def make_directory(self, path: Path) -> bool:
        """Make a directory; returns False if anything of that name exists."""
        try:
            _complete("make directory", path, lambda: self._files.mkdir(path))
        except StorageFailed as failure:
            if failure.errno != errno.EEXIST:
                raise
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        """Return whether ``path`` is a directory itself, not a link to one."""
        return _complete("look at", path, lambda: self._files.is_directory(path))

    def names(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory, in ascending order."""
        return _complete("list", path, lambda: self._files.list(path))

    def directories(self, path: Path) -> tuple[str, ...]:
        """Return the names of the directories in a directory, without links to any."""
        return tuple(name for name in self.names(path) if isinstance(name, DirectoryName))

    def is_listed(self, path: Path) -> bool:
        """Return whether listings show a name, and the directory that it is in.

        A client of a server may remember for a minute that there was no such name.  It does
        not remember listings.  So what is listed is there, and a call that does not find it
        says nothing.
        """
        try:
            return path.name in self.names(path.parent)
        except StorageFailed as failure:
            if failure.errno != errno.ENOENT:
                return True  # nobody can tell
        try:
            return path.parent.name in self.names(path.parent.parent)
        except StorageFailed as failure:
            return failure.errno != errno.ENOENT

    def rename(self, source: Path, target: Path) -> None:
        """Rename; fails with ``EEXIST`` or ``ENOTEMPTY`` if there is a ``target``.

        A client of a server asks again when an answer is lost, and is told that the source is
        gone, or that the target exists.  So no failure counts if the target is the source.
        """
        moved = self.identity(source)
        try:
            _complete("rename", source, lambda: self._files.rename_noreplace(source, target))
        except StorageFailed:
            if moved is None or self.identity(target) != moved:
                raise

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Return what tells ``path`` from all others, None if that cannot be told."""
        try:
            return _complete("look at", path, lambda: self._files.identity(path))
        except StorageFailed:
            return None

    def fsync_directory(self, path: Path, *, is_outside: bool = False) -> None:
        """Make the names in a directory durable; record a downgrade where that is unsupported.

        One outside of the run directory may not be readable, which is a downgrade, too.
        """
        try:
            _complete("fsync directory", path, lambda: self._files.fsync_directory(path))
        except StorageFailed as failure:
            is_unreadable = is_outside and failure.errno in (errno.EACCES, errno.EPERM)
            if failure.errno not in _UNSUPPORTED and not is_unreadable:
                raise
            name = errno.errorcode[failure.errno]
            self.record_downgrade(
                f"a power cut may lose names: directories cannot be synced here ({name})"
            )

    def write_durably(
        self,
        path: Path,
        buffers: Sequence[memoryview],
        beside: Callable[[], object] | None = None,
    ) -> None:
        """Create a file of the given contents and sync it, or leave none behind.

        Another thread calls ``beside`` meanwhile, so that a digest of the contents is ready
        when the disk is.  If it raises, the file is removed as well.
        """
        nbytes = sum(map(len, buffers))
        self._watch(nbytes)
        try:
            self._write_durably(path, buffers, beside)
        finally:
            self._watch(-nbytes)

    def _write_durably(
        self, path: Path, buffers: Sequence[memoryview], beside: Callable[[], object] | None
    ) -> None:
        handle = _complete("create", path, lambda: self._files.create_exclusive(path))
        try:
            try:
                with _beside(beside, sum(map(len, buffers))):
                    self._fill(handle, path, buffers)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.close(handle)
                raise
            _complete("close", path, lambda: self._close(handle))
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[ReadFile]:
        """Open a regular file for reading, and close it at the end."""
        handle = _complete("open", path, lambda: self._files.open_read(path))
        try:
            yield ReadFile(self._files, path, handle, self._watch)
        finally:
            with contextlib.suppress(OSError):
                self._files.close(handle)

    def content(self, path: Path) -> bytes:
        """Return the content of a regular file."""
        with self.reading(path) as file:
            found = bytearray(file.size())
            file.read_into(memoryview(found), 0)
        return bytes(found)

    def size_of_tree(self, path: Path) -> int:
        """Return the bytes of the files in a directory, of those whose size can be told."""
        total = 0
        with contextlib.suppress(StorageFailed):
            for name in self.names(path):
                with contextlib.suppress(StorageFailed), self.reading(path / name) as file:
                    total += file.size()
        return total

    def remove_tree(self, path: Path) -> None:
        """Remove a directory of files and directories, if it is there; does not follow links."""
        found = [path]  # each directory after the one that it lies in; it may be of any depth
        for directory in found:
            with _tolerated(errno.ENOENT):
                for name in self.names(directory):
                    if isinstance(name, DirectoryName):
                        found.append(directory / name)
                    else:
                        self.remove_file(directory / name)
        for directory in reversed(found):
            with _tolerated(errno.ENOENT):
                self.remove_empty(directory)

    def remove_empty(self, path: Path) -> None:
        """Remove a directory that holds nothing."""
        _complete("remove", path, lambda: self._files.rmdir(path))

    def remove_file(self, path: Path) -> None:
        """Remove a file, if it is there."""
        with _tolerated(errno.ENOENT):
            _complete("remove", path, lambda: self._files.unlink(path))
        self._watch(0)

    def _close(self, handle: int) -> None:
        # Linux releases the descriptor even if close is interrupted: closing
        # again could hit a file that another thread has just opened.
        with contextlib.suppress(InterruptedError):
            self._files.close(handle)

    def _fill(self, handle: int, path: Path, buffers: Sequence[memoryview]) -> None:
        self._allocate(handle, path, sum(map(len, buffers)))
        offset = started = 0
        for batch in _batches(buffers):
            while batch:
                taken = self._write(handle, path, batch, offset)
                offset += taken
                _drop_front(batch, taken)
            if offset - started >= _BATCH_BYTES:
                self._start_writeback(handle, path, started, offset)
                started = offset
        _complete("fsync", path, lambda: self._files.fsync(handle))

    def _write(self, handle: int, path: Path, batch: list[memoryview], offset: int) -> int:
        taken = _complete("write", path, lambda: self._files.write(handle, batch, offset))
        if taken <= 0:
            raise StorageFailed("write", path, OSError(errno.EIO, "the file takes no more bytes"))
        return taken

    def _start_writeback(self, handle: int, path: Path, start: int, stop: int) -> None:
        """Let the disk work while the rest is written, if the file system supports that."""
        with _tolerated(*_UNSUPPORTED):
            _complete(
                "write back", path, lambda: self._files.start_writeback(handle, start, stop - start)
            )

    def _allocate(self, handle: int, path: Path, size_bytes: int) -> None:
        try:
            _complete("allocate", path, lambda: self._files.allocate(handle, size_bytes))
        except StorageFailed as failure:
            if failure.errno not in _UNSUPPORTED:
                raise
            self.record_downgrade("space cannot be reserved ahead: a full disk shows late")


class ReadFile:
    """A regular file that is open for reading."""

    def __init__(self, filesystem: FileSystem, path: Path, handle: int, watch: Watch) -> None:
        self._files = filesystem
        self._path = path
        self._handle = handle
        self._watch = watch

    def size(self) -> int:
        """Return the bytes of the file."""
        return _complete("look at", self._path, lambda: self._files.size(self._handle))

    def uncache(self) -> None:
        """Let the next reads come from the disk, if the system supports that."""
        with contextlib.suppress(OSError):
            self._files.uncache(self._handle)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the whole ``buffer`` from ``offset``; a file that ends early is a failure."""
        done = 0
        while done < len(buffer):
            rest, position = buffer[done:], offset + done
            read = functools.partial(self._files.read, self._handle, rest, position)
            count = _complete("read", self._path, read)
            self._watch(0)
            if count <= 0:
                raise StorageFailed("read", self._path, OSError(errno.EIO, "the file ends early"))
            done += count


def _complete(operation: str, path: Path, call: Callable[[], _T]) -> _T:
    """Repeat a call while it is interrupted; raise ``StorageFailed`` if it fails."""
    for _ in range(_MOST_INTERRUPTIONS):
        try:
            return call()
        except InterruptedError:
            continue
        except OSError as error:
            raise StorageFailed(operation, path, error) from error
    raise StorageFailed(operation, path, OSError(errno.EINTR, "interrupted without end"))


@contextlib.contextmanager
def _tolerated(*numbers: int) -> Iterator[None]:
    """Ignore a call's failure with one of these error numbers."""
    try:
        yield
    except StorageFailed as failure:
        if failure.errno not in numbers:
            raise


@contextlib.contextmanager
def _beside(work: Callable[[], object] | None, size_bytes: int) -> Iterator[None]:
    """Do ``work`` in another thread until the block ends; do a small amount before the block."""
    if work is None or size_bytes < _WORTH_A_THREAD_BYTES:
        if work is not None:
            work()
        yield
        return
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-digest") as thread:
        done = thread.submit(work)
        yield
        done.result()


def _batches(buffers: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Yield the buffers of each call: about ``_BATCH_BYTES``, in at most ``_MOST_BUFFERS``."""
    batch: list[memoryview] = []
    size = 0
    for part in _parts(buffers):
        batch.append(part)
        size += len(part)
        if size >= _BATCH_BYTES or len(batch) == _MOST_BUFFERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parts(buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the buffers cut to at most ``_BATCH_BYTES``, without empty ones."""
    for buffer in buffers:
        for start in range(0, len(buffer), _BATCH_BYTES):
            yield buffer[start : start + _BATCH_BYTES]


def _drop_front(buffers: list[memoryview], count: int) -> None:
    """Drop ``count`` bytes from the front of a list of buffers."""
    whole = 0
    while whole < len(buffers) and count >= len(buffers[whole]):
        count -= len(buffers[whole])
        whole += 1
    del buffers[:whole]
    if count:
        buffers[0] = buffers[0][count:]
